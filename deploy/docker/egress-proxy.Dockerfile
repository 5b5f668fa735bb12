# The egress proxy of allowlist sandboxes. Build context: the folder with the binary of tools/build_egress_proxy.sh.
FROM scratch
COPY egress-proxy /egress-proxy
USER 65532:65532
ENTRYPOINT ["/egress-proxy"]
