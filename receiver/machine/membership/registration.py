"""Rule 1: a process registers before it does anything else. The driver's answer has its epoch. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from forebay import messages
from forebay.settings.schema import ReceiverSettings
from receiver import actions as act
from receiver import inputs as inp
from receiver.machine.exchange.contact import DriverContact
from receiver.machine.exchange.delays import retry_delay
from receiver.machine.exchange.outbox import Outbox
from receiver.machine.exchange.requests import Failed
from receiver.machine.limits.flow import Flow
from receiver.machine.membership.named_topics import NamedTopics
from receiver.machine.membership.shutdown import Shutdown


@dataclass(frozen=True, slots=True)
class ReceiverIdentity:
    """The identity of this process at the driver.

    ``instance_id``: differs between two processes with the same ``receiver_id``. ``version``: of this software, for the
    driver's status.
    """

    stream: str
    receiver_id: str
    host: str
    instance_id: str
    version: str


@dataclass(kw_only=True, slots=True, eq=False)
class Registration:
    """Registers this process at the driver, and stores the answer.

    ``epoch``: of this process, 0 before it is registered. ``timeline``: of the journal. ``topics``: to subscribe to.
    """

    identity: ReceiverIdentity
    settings: ReceiverSettings
    outbox: Outbox
    contact: DriverContact
    flow: Flow
    shutdown: Shutdown
    topics: NamedTopics
    epoch: int = 0
    timeline: int = 0
    _registering: bool = False
    _register_at: float = 0.0

    @property
    def receiver_id(self) -> str:
        return self.identity.receiver_id

    def advance(self, now: float) -> None:
        """Register, if no request is open and the delay after the last failure is over."""
        if self.shutdown.draining:
            self.outbox.exit(0, "asked to stop before it was registered")
            return
        if self._registering or now < self._register_at:
            return
        self._registering = True
        message = messages.RegisterRequest(
            stream=self.identity.stream,
            receiver_id=self.identity.receiver_id,
            host=self.identity.host,
            instance_id=self.identity.instance_id,
            release=self.identity.version,
        )
        request = self.outbox.ask(inp.Registered, now, self._registered, self._failed)
        self.outbox.do(act.Register(request, message))

    def _registered(self, event: inp.Registered, now: float) -> None:
        self._registering = False
        self.epoch = event.epoch
        self.timeline = event.timeline
        self.contact.see(event.driver_epoch)
        self.outbox.note(f"registered as {self.receiver_id}, epoch {event.epoch:x}", epoch=f"{event.epoch:x}")
        self.flow.throttle.begin(now)
        self._hear(event.topics)
        self.topics.topics = event.topics
        self.outbox.do(act.Subscribe(event.epoch, event.topics))

    def _failed(self, failure: Failed, now: float) -> None:
        self._registering = False
        self._register_at = now + retry_delay(self.settings.reclaim_delay, self.contact.failures)

    def follow(self, topics: tuple[str, ...] | None) -> None:
        """Subscribe to the topics that a heartbeat's answer names. None: the driver names none, nothing changes."""
        self._hear(topics)
        if topics is not None and topics != self.topics.topics and not self.shutdown.draining:
            self.topics.topics = topics
            self.outbox.note(f"subscribing to the topics that the driver names: {', '.join(topics) or 'none'}")
            self.outbox.do(act.Follow(topics))

    def _hear(self, topics: tuple[str, ...] | None) -> None:
        if warning := self.topics.hear(topics):
            self.outbox.note(warning, warning=True)

    def fenced(self, event: inp.Fenced) -> None:
        """INV-4: a newer process has this receiver id. Nothing that this process does counts any more, so it ends."""
        self.outbox.exit(4, f"superseded: {event.reason}")
