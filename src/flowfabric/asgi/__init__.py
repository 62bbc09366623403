"""The small web application behind `app.asgi()`: receives approvals by link, and callbacks."""

from flowfabric.asgi.app import ASGIApp, asgi_app

__all__ = ["ASGIApp", "asgi_app"]
