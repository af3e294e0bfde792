"""`headrace bench serve`: load for any OpenAI-compatible server, and what its clients saw. Never imports JAX."""
