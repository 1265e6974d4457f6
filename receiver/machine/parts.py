"""Puts the parts of one receiver together. Pure."""

from __future__ import annotations

from forebay.settings.schema import ReceiverSettings
from receiver.machine.control.drain import Drain
from receiver.machine.control.heartbeat import Commands, Heartbeat
from receiver.machine.control.status import Status
from receiver.machine.delivery.buffer import Buffer
from receiver.machine.delivery.commits import CommitRetries
from receiver.machine.delivery.reports import Reports
from receiver.machine.delivery.sealing import Sealing
from receiver.machine.delivery.stores import Stores
from receiver.machine.exchange.contact import DriverContact
from receiver.machine.exchange.outbox import Outbox
from receiver.machine.exchange.requests import Requests
from receiver.machine.limits.flow import Flow
from receiver.machine.limits.pausing import Pausing
from receiver.machine.limits.throttle import Throttle
from receiver.machine.membership.named_topics import NamedTopics
from receiver.machine.membership.partitions import Partitions
from receiver.machine.membership.registration import ReceiverIdentity, Registration
from receiver.machine.membership.shutdown import Shutdown
from receiver.machine.ownership.assignment import Assignment
from receiver.machine.ownership.claims import Claims
from receiver.machine.ownership.topic_check import TopicCheck
from receiver.machine.polling.faults import Faults
from receiver.machine.polling.poll_results import PollResults


class Parts:
    """The parts of a receiver's machine. They are made in an order in which each one gets the parts that it calls."""

    #: classes of parts; a test replaces one to plant a mistake
    partitions_type: type[Partitions] = Partitions
    reports_type: type[Reports] = Reports

    def __init__(self, identity: ReceiverIdentity, settings: ReceiverSettings, *, by_pattern: bool) -> None:
        self.requests = requests = Requests()
        origin = "Kafka" if settings.source == "kafka" else settings.source
        self.outbox = outbox = Outbox(requests, origin)
        self.contact = contact = DriverContact(outbox=outbox)
        self.shutdown = shutdown = Shutdown(settings=settings, outbox=outbox, contact=contact)
        self.flow = flow = Flow(
            settings=settings, outbox=outbox, throttle=Throttle(settings), pausing=Pausing(settings.memory)
        )
        self.registration = registration = Registration(
            identity=identity,
            settings=settings,
            outbox=outbox,
            contact=contact,
            flow=flow,
            shutdown=shutdown,
            topics=NamedTopics(by_pattern),
        )
        self.partitions = partitions = self.partitions_type(
            settings=settings, outbox=outbox, flow=flow, shutdown=shutdown
        )
        self.buffer = buffer = Buffer(
            settings=settings,
            outbox=outbox,
            registration=registration,
            partitions=partitions,
            sealing=Sealing(settings=settings),
        )
        self.stores = stores = Stores(settings=settings, outbox=outbox, sealed=buffer.sealed)
        self.commits = commits = CommitRetries(
            settings=settings, outbox=outbox, registration=registration, partitions=partitions
        )
        self.faults = faults = Faults(
            settings=settings,
            outbox=outbox,
            contact=contact,
            registration=registration,
            shutdown=shutdown,
            partitions=partitions,
            buffer=buffer,
        )
        self.poll_results = PollResults(
            settings=settings,
            outbox=outbox,
            flow=flow,
            shutdown=shutdown,
            partitions=partitions,
            buffer=buffer,
            faults=faults,
        )
        self.reports = reports = self.reports_type(
            settings=settings,
            outbox=outbox,
            contact=contact,
            registration=registration,
            partitions=partitions,
            buffer=buffer,
            commits=commits,
        )
        self.topic_check = topic_check = TopicCheck(
            settings=settings,
            outbox=outbox,
            partitions=partitions,
            buffer=buffer,
            faults=faults,
            reports=reports,
        )
        self.claims = claims = Claims(
            settings=settings,
            outbox=outbox,
            contact=contact,
            registration=registration,
            shutdown=shutdown,
            partitions=partitions,
            buffer=buffer,
            commits=commits,
        )
        self.assignment = Assignment(
            settings=settings,
            outbox=outbox,
            flow=flow,
            partitions=partitions,
            buffer=buffer,
            commits=commits,
            claims=claims,
        )
        self.drain = drain = Drain(
            settings=settings,
            outbox=outbox,
            registration=registration,
            shutdown=shutdown,
            partitions=partitions,
            buffer=buffer,
            commits=commits,
            claims=claims,
        )
        self.status = status = Status(
            outbox=outbox,
            contact=contact,
            registration=registration,
            shutdown=shutdown,
            flow=flow,
            stores=stores,
            partitions=partitions,
            topic_check=topic_check,
        )
        commands = Commands(
            outbox=outbox,
            contact=contact,
            flow=flow,
            shutdown=shutdown,
            claims=claims,
            drain=drain,
        )
        self.heartbeat = Heartbeat(
            version=identity.version,
            settings=settings,
            outbox=outbox,
            contact=contact,
            registration=registration,
            flow=flow,
            stores=stores,
            partitions=partitions,
            buffer=buffer,
            claims=claims,
            reports=reports,
            status=status,
            commands=commands,
        )
