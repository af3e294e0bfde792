"""What requests look like, as pydantic models."""
