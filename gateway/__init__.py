"""The OpenAI-compatible data plane, its command line and the demo. Nothing imports this package."""
