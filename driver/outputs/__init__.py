"""Output helpers: each run of a batch counts once in the output, even if processes are killed (docs/OUTPUTS.md)."""

from driver.batches.job.work import Written
from driver.outputs.delta import DeltaOutput, transaction_of
from driver.outputs.kafka import KafkaOutput
from driver.outputs.output import Output
from driver.outputs.parquet import ParquetOutput
from driver.outputs.sql import SqlOutput

__all__ = ["DeltaOutput", "KafkaOutput", "Output", "ParquetOutput", "SqlOutput", "Written", "transaction_of"]
