"""Elastic jobs on a shared cluster: two that overlap, and one beside a service."""
