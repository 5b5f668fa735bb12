# An inference engine on NVIDIA GPUs: vLLM and the engine host. Triton compiles with g++ when it starts.
# Context: the root of the repository. BASE may carry a digest: BASE=...@sha256:... of
# `docker buildx imagetools inspect docker.io/library/python:3.11-slim-bookworm` (docs/images.md).
ARG BASE=docker.io/library/python:3.11-slim-bookworm

FROM ${BASE} AS package
COPY deploy/docker/steps/tools.sh deploy/docker/steps/package.sh requirements/images.txt /steps/
COPY . /source
RUN --mount=type=secret,id=ca --mount=type=secret,id=index /steps/package.sh /source /package

FROM ${BASE}
# Pins: the name of a file in requirements/, without its ending.
ARG REQUIREMENTS=engine-gpu
COPY deploy/docker/steps/tools.sh deploy/docker/steps/dependencies.sh requirements/images.txt requirements/${REQUIREMENTS}.txt /usr/share/longshore/
RUN --mount=type=secret,id=ca --mount=type=secret,id=index \
    /usr/share/longshore/dependencies.sh "${REQUIREMENTS}" g++ libnuma1
COPY --from=package /package /opt/longshore
# The root may be read-only: everything that is written goes to /tmp or to volumes.
ENV PATH=/opt/longshore/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/tmp USER=longshore \
    PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
WORKDIR /tmp
USER 10001:10001
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="longshore/engine-gpu" \
      org.opencontainers.image.description="Longshore: vLLM on GPUs" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
