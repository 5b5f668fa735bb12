# longshore/base: what tasks whose Dockerfile says `FROM longshore/base` run in on a cluster: shells, text tools, Python.
# BASE may carry a digest, as in service.Dockerfile.
ARG BASE=docker.io/library/python:3.11-slim-bookworm
FROM ${BASE}
RUN apt-get update -qq && \
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends bc bsdextrautils diffutils file gawk jq patch procps tree xxd && \
    rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/apt /var/log/dpkg.log
WORKDIR /
CMD ["/bin/bash"]
