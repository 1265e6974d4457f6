"""SIGTERM and SIGINT reach a service whatever its main thread does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from forebay.process.signals import STOP_SIGNALS, stop_signals

PATIENCE_SECONDS = 90

#: its main thread waits in a system call that no signal ends, so Python never runs a handler
HELD = """
import ctypes, signal, sys
from forebay.process.signals import stop_signals
def said(word):
    return lambda: print(word, flush=True)
signal.alarm(300)
with stop_signals(said("stop"), *([said("again")] if sys.argv[1:] else [])):
    libc = ctypes.CDLL(None)
    mutex = ctypes.create_string_buffer(128)
    libc.pthread_mutex_lock(mutex)
    print("held", flush=True)
    libc.pthread_mutex_lock(mutex)
"""


def held(*arguments: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HELD, *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


@pytest.mark.parametrize("second", STOP_SIGNALS)
@pytest.mark.parametrize("first", STOP_SIGNALS)
def test_a_signal_is_seen_while_the_main_thread_runs_no_python_and_a_second_one_ends_the_process(
    first: signal.Signals, second: signal.Signals
) -> None:
    """INV-6: a handler in Python waits for the main thread, and the signal is lost if that thread waits for its effect."""
    with held() as process:
        assert process.stdout is not None
        process.send_signal(first)
        assert process.stdout.readline() == "stop\n"
        process.send_signal(second)
        # by the signal itself if the first one came just before the main thread waited
        assert process.wait(PATIENCE_SECONDS) in (-second, 128 + second)


def test_later_signals_are_passed_to_the_given_action() -> None:
    with held("again") as process:
        assert process.stdout is not None
        try:
            for number, said in ((signal.SIGINT, "stop\n"), (signal.SIGINT, "again\n"), (signal.SIGTERM, "again\n")):
                process.send_signal(number)
                assert process.stdout.readline() == said
        finally:
            process.kill()


def test_the_handlers_of_before_are_back_afterwards() -> None:
    def own(*_: object) -> None:
        seen.append("own")

    seen: list[str] = []
    before = [signal.signal(number, own) for number in STOP_SIGNALS]
    other = os.pipe()
    os.set_blocking(other[1], False)
    woken = signal.set_wakeup_fd(other[1])
    try:
        stopped = threading.Event()
        with stop_signals(stopped.set, lambda: None):
            signal.raise_signal(signal.SIGTERM)
            assert stopped.wait(PATIENCE_SECONDS)
        assert not seen
        signal.raise_signal(signal.SIGINT)
        assert seen == ["own"]
        assert os.read(other[0], 8) == bytes([signal.SIGINT])
    finally:
        signal.set_wakeup_fd(woken)
        for number, handler in zip(STOP_SIGNALS, before, strict=True):
            signal.signal(number, handler)
        for descriptor in other:
            os.close(descriptor)


def test_no_thread_or_descriptor_is_left_afterwards() -> None:
    """In a process of its own: what earlier tests left is closed here at any time."""
    code = (
        "import os, signal, threading\n"
        "from forebay.process.signals import stop_signals\n"
        "before = os.listdir('/proc/self/fd')\n"
        "stopped = threading.Event()\n"
        "with stop_signals(stopped.set, lambda: None):\n"
        "    (listener,) = set(threading.enumerate()) - {threading.main_thread()}\n"
        "    signal.raise_signal(signal.SIGTERM)\n"
        f"    assert stopped.wait({PATIENCE_SECONDS})\n"
        f"listener.join({PATIENCE_SECONDS})\n"
        "print(listener.is_alive(), os.listdir('/proc/self/fd') == before)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False True\n"


def test_another_signal_that_python_handles_does_not_stop() -> None:
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        calls: list[str] = []
        stopped = threading.Event()

        def stop() -> None:
            calls.append("stop")
            stopped.set()

        with stop_signals(stop, lambda: calls.append("again")):
            signal.raise_signal(signal.SIGUSR1)
            signal.raise_signal(signal.SIGTERM)
            assert stopped.wait(PATIENCE_SECONDS)
        assert calls == ["stop"]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_second_signal_ends_a_process_in_which_no_thread_can_run_python() -> None:
    """INV-6: code in C that a job calls, and that never gives the interpreter back."""
    code = (
        "import ctypes, signal, threading\n"
        "from forebay.process.signals import stop_signals\n"
        "signal.alarm(300)\n"
        "stopped = threading.Event()\n"
        "with stop_signals(stopped.set):\n"
        "    signal.raise_signal(signal.SIGTERM)\n"
        "    assert stopped.wait(90)\n"
        "    libc, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(128)\n"
        "    libc.pthread_mutex_lock(mutex)\n"
        "    print('held', flush=True)\n"
        "    libc.pthread_mutex_lock(mutex)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == -signal.SIGTERM
