"""Pure ASGI middleware, each usable alone in any Starlette application."""
