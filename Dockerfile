# All of it on a machine that has a builder of containers and nothing else (README, "Install"); for CPUs.
FROM debian:bookworm-slim
# Its Python is 3.11; the rest is what `make` needs to set itself up.
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates git make python3 python3-venv \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /merganser
# First what the environment is made of and imports while it is: it takes minutes, and edits elsewhere keep it.
COPY LICENSE Makefile README.md constraints.txt pyproject.toml setup.py ./
COPY flows flows
COPY merganser merganser
COPY packages packages
COPY tasks tasks
RUN make venv
COPY . .
CMD ["make", "run"]
