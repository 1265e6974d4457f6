"""When Spark starts before the driver leads. Imports no Spark, since a driver with another engine decides it too."""

from __future__ import annotations

from driver.spark.address import is_local
from forebay.settings.schema import Settings


def starts_early(settings: Settings, standby: bool) -> bool:
    """Return whether the engine is started before the driver leads."""
    if not standby:
        return True
    match settings.driver.warm_standby:
        case "auto":
            return _runs_here(settings)
        case chosen:
            return chosen == "always"


def starts_first(settings: Settings, standby: bool) -> bool:
    """Return whether the engine is started even before the driver knows whether another driver leads. On a cluster its
    application would take cores from that driver's."""
    return _runs_here(settings) and starts_early(settings, standby)


def starts_spark_first(settings: Settings, standby: bool) -> bool:
    """Return whether Spark's JVM is started while the driver's modules are still imported."""
    return settings.driver.engine == "spark" and starts_first(settings, standby)


def _runs_here(settings: Settings) -> bool:
    return is_local(settings.spark.options.get("spark.master", ""))
