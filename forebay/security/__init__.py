"""Roles, access tokens and certificates of clients and services."""
