"""Makes the bucket of the tests on an S3 server that does not have it from the beginning."""

from __future__ import annotations

from botocore.config import Config  # type: ignore[import-untyped]
from botocore.session import get_session  # type: ignore[import-untyped]

from tests.support.stores.s3 import BUCKET, S3Server


def make_bucket(server: S3Server) -> None:
    client = get_session().create_client(
        "s3",
        region_name="us-east-1",
        endpoint_url=server.url,
        aws_access_key_id=server.environment["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=server.environment["AWS_SECRET_ACCESS_KEY"],
        config=Config(s3={"addressing_style": "path"}),
    )
    client.create_bucket(Bucket=BUCKET)
    client.close()
