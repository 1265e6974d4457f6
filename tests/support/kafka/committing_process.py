"""A process that commits offsets from outside a group, many a second, until its input ends: ``python -m … ADDRESS TOPIC GROUP``.

It prints ``ready`` when it begins, and at the end for each of its groups the committed offsets and its last message.
"""

from __future__ import annotations

import sys
import threading

from forebay.kafka.client.admin import Committed, KafkaAdmin
from forebay.model.errors import ForebayError
from forebay.model.values import TopicPartition

GROUPS = 4
_PAUSE_SECONDS = 0.05


def main(address: str, topic: str, group: str) -> None:
    ending, ready = threading.Event(), threading.Barrier(GROUPS + 1)
    tps = [TopicPartition(topic, number) for number in range(2)]

    def commit(name: str) -> None:
        with KafkaAdmin({"bootstrap.servers": address}, timeout_seconds=60.0) as admin:
            offset = 0
            while not ending.wait(_PAUSE_SECONDS):
                offset += 1
                errors = admin.publish(name, dict.fromkeys(tps, Committed(offset, -1, "")))
                if errors:
                    raise ForebayError(f"{name}: {errors}")
                if offset == 1:
                    ready.wait()
            found = admin.committed(name, tps)
            if {at.offset for at in found.values()} != {offset}:
                raise ForebayError(f"{name}: said {offset}, and found {found}")
            print(name, offset, flush=True)

    threads = [threading.Thread(target=commit, args=(f"{group}-{number}",)) for number in range(GROUPS)]
    for thread in threads:
        thread.start()
    ready.wait()
    print("ready", flush=True)
    sys.stdin.read()
    ending.set()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
