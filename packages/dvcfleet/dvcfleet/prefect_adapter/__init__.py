"""The Prefect adapter: flow runs, task runs and the server on loopback."""
