"""The section ``[spark]`` of ``forebay.toml``: its keys, with bounds, defaults and descriptions."""

from typing import Annotated, Any, Literal

import msgspec

from forebay.model.units import Duration, Size
from forebay.settings.schema.constraints import Folder, ModuleName
from forebay.settings.schema.section import Section, doc

#: keys of Spark that are written without their "spark." more often than others
FREQUENT_OPTIONS = ("spark.master", "spark.app.name", "spark.executor.memory", "spark.driver.memory")


class SparkSettings(Section, frozen=True, kw_only=True):
    """Spark as the engine of batches. Every other key goes to Spark unchanged, as in `"spark.ui.enabled" = false`."""

    ship: Annotated[
        Literal["auto", "installed"],
        doc(
            'how Spark\'s executors get Forebay: "auto" the driver sends it; "installed" it is installed where they run'
        ),
    ] = "auto"
    modules: Annotated[
        tuple[ModuleName, ...], doc("names of your own modules and packages that the driver sends as well")
    ] = ()
    class_archive: Annotated[
        Folder | None,
        doc(
            "folder for an archive of Java's classes, with which Spark starts faster; a driver that finds "
            "none makes it after its start, in the background",
            example="/var/lib/forebay/classes",
        ),
    ] = None
    small_batch: Annotated[
        Size,
        doc(
            "maximum decompressed size of a batch whose blocks the driver reads for `batch.df`, so that Spark's tasks start no "
            "Python; larger ones are read by tasks; 0B: all"
        ),
    ] = Size(8_000_000)
    executors_timeout: Annotated[
        Duration,
        doc(
            "how long a driver on a cluster stays without any executor, after it had one, before it ends, so that its supervisor "
            "starts it again with a new application; 0s: for ever"
        ),
    ] = Duration(120.0)
    #: every other key, passed to Spark unchanged
    options: dict[str, str] = msgspec.field(default_factory=dict)

    def __repr__(self) -> str:
        """Without the options, which may hold passwords."""
        return f"<SparkSettings: {', '.join(self.options)}>"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("keys", tuple(self.options))]
