"""Run the stages of any DVC repository in parallel, as a Prefect flow."""
