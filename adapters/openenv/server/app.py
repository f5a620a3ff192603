"""The environment over HTTP and WebSockets: `server --port 8001`, or `uvicorn server.app:app`."""

import argparse

import uvicorn

from openenv.core.env_server.http_server import create_app

try:
    from ..models import KernelAction, KernelObservation, KernelState
    from .kernel_environment import KernelEnvironment
except ImportError:  # the folder itself is on the path, as in a container of OpenEnv
    from models import KernelAction, KernelObservation, KernelState
    from server.kernel_environment import KernelEnvironment

app = create_app(
    KernelEnvironment,
    KernelAction,
    KernelObservation,
    env_name="ideatree_kernels",
    max_concurrent_envs=64,
    state_cls=KernelState,
)


def main() -> None:
    """Serves the environment."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8001)
    given = parser.parse_args()
    uvicorn.run(app, host=given.host, port=given.port)


if __name__ == "__main__":
    main()
