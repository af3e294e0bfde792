"""Anthropic's Messages form of a chat: what comes in, and what goes out."""
