# Stands for docker.io/library/postgres: PostgreSQL 15 of Debian, its programs on PATH, and the same user.
FROM localhost/longshore-test/debian:bookworm
RUN groupadd -g 999 postgres && useradd -u 999 -g 999 -d /var/lib/postgresql -s /bin/bash postgres && \
    apt-get update -qq && \
    mkdir -p /etc/postgresql-common && echo "create_main_cluster = false" >/etc/postgresql-common/createcluster.conf && \
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends postgresql-15 && \
    rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/*
ENV PATH=/usr/lib/postgresql/15/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
USER 999:999
