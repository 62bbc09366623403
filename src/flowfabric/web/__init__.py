"""The web application of `app.asgi()`, which receives approvals by link, and callbacks."""

from flowfabric.web.app import ASGIApp, asgi_app

__all__ = ["ASGIApp", "asgi_app"]
