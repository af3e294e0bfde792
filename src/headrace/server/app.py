"""The application: routes, error handlers and middleware over one bridge."""

from __future__ import annotations

from importlib.metadata import version

from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.server.bridge import Bridge
from headrace.server.context import Server
from headrace.server.errors import add_error_handlers
from headrace.server.middleware import add_middleware
from headrace.server.observe import Observe
from headrace.server.openapi import ERRORS, describe
from headrace.server.options import ServerOptions
from headrace.server.routes import (
    admin,
    chat,
    completions,
    embeddings,
    health,
    messages,
    metrics,
    models,
    page,
    responses,
    status,
    tokenize,
)

ROUTERS = (
    completions.router,
    chat.router,
    responses.router,
    messages.router,
    embeddings.router,
    tokenize.router,
    models.router,
    health.router,
    metrics.router,
    status.router,
    page.router,
)


class App(FastAPI):
    """The application inside of what observes it: nothing that happens to a request goes unseen."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request. FastAPI's own telemetry, which would ask OpenTelemetry and the environment each time, is
        left out: `Observe` does that."""
        await Starlette.__call__(self, scope, receive, send)

    def build_middleware_stack(self) -> ASGIApp:
        """All middleware, with the observer around it."""
        server: Server = self.state.server
        declared = [getattr(route, "path", "{") for router in (*ROUTERS, admin.router) for route in router.routes]
        paths = [path for path in declared if "{" not in path]
        return Observe(super().build_middleware_stack(), server.metrics, server.tracing, paths)


def make_app(bridge: Bridge, options: ServerOptions) -> FastAPI:
    """The application that serves an engine; the bridge is started and stopped by the caller."""
    app = App(
        title="Headrace",
        version=version("headrace"),
        description="OpenAI-compatible LLM inference",
        redirect_slashes=False,
        docs_url=None,  # these pages load scripts from elsewhere
        redoc_url=None,
        responses=ERRORS,
    )
    app.state.server = Server.of(bridge, options)
    add_error_handlers(app)
    add_middleware(app, options)
    for router in ROUTERS:
        app.include_router(router)
    if options.admin_key is not None:
        app.include_router(admin.router)
    describe(app, options)
    return app
