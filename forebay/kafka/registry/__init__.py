"""Schemas from a registry that speaks Confluent's protocol, and the access tokens for it."""

from forebay.kafka.registry.client import RegistryAccess

__all__ = ["RegistryAccess"]
