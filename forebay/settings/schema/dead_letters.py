"""The section ``[dead_letters]`` of ``forebay.toml``: its keys, with bounds, defaults and descriptions."""

from typing import Annotated

from forebay.settings.schema.constraints import Count, Fraction, TopicName, Url
from forebay.settings.schema.section import Section, doc


class DeadLetterSettings(Section, frozen=True, kw_only=True):
    """Records that the job can't decode. With neither `url` nor `topic`, the first of them fails its batch."""

    url: Annotated[
        Url | None,
        doc(
            "URL of a folder for records that the job can't decode; every host's tasks write there",
            example="file:///var/lib/forebay/dead-letters",
        ),
    ] = None
    topic: Annotated[
        TopicName | None, doc("topic for them, at the brokers of [kafka], instead of a URL", example="orders-dead")
    ] = None
    max_fraction: Annotated[
        Fraction,
        doc("share of undecodable records above which a batch fails, if there are more than records_allowed"),
    ] = 0.5
    records_allowed: Annotated[Count, doc("number of undecodable records up to which a batch never fails")] = 100
