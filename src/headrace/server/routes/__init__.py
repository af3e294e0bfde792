"""The endpoints, one router per file."""
