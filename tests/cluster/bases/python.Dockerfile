# Stands for docker.io/library/python:3.11-slim-bookworm, which cannot be pulled where the tests run.
FROM localhost/longshore-test/debian:bookworm
RUN apt-get update -qq && \
    apt-get install -y -qq --no-install-recommends python3 python3-venv && \
    rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/*
