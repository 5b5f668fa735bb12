# Stands for docker.io/library/redis: Redis 7 of Debian, and the same user.
FROM localhost/longshore-test/debian:bookworm
RUN groupadd -g 999 redis && useradd -u 999 -g 999 -d /data -s /bin/bash redis && \
    apt-get update -qq && \
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends redis-server && \
    rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/* && mkdir /data && chown 999:999 /data
WORKDIR /data
USER 999:999
