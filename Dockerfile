# The service itself; what programs in sandboxes see is runtime/Dockerfile. The same base, so that one is all that has to be
# there where no registry is.

FROM debian:trixie-slim AS system
RUN export DEBIAN_FRONTEND=noninteractive \
 && apt-get update -qq \
 && apt-get install -y -qq --no-install-recommends ca-certificates e2fsprogs python3 >/dev/null \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/* /var/log/*

FROM system AS packages
# Where the packages come from, if not from the public index: for this stage only, of which no layer is in the image.
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
RUN export DEBIAN_FRONTEND=noninteractive \
 && apt-get update -qq \
 && apt-get install -y -qq --no-install-recommends python3-venv >/dev/null
COPY pyproject.toml README.md LICENSE /source/
COPY egress/ /source/egress/
COPY interpreter/ /source/interpreter/
COPY kernels/ /source/kernels/
COPY runtime/ /source/runtime/
# Without pip, which the service does not need; compiled now, since nobody can write there later.
RUN python3 -m venv /opt/cellbox-server \
 && cd /opt/cellbox-server \
 && bin/python -m pip install --no-cache-dir --no-compile --no-input --disable-pip-version-check --progress-bar off -q \
      '/source[server]' \
 && bin/python -m pip uninstall -q -y pip \
 && bin/python -m compileall -q -f --invalidation-mode unchecked-hash lib

FROM system
COPY --from=packages /opt/cellbox-server /opt/cellbox-server
ENV PATH=/opt/cellbox-server/bin:/usr/local/bin:/usr/bin:/bin \
    LANG=C.UTF-8 \
    PYTHONDONTWRITEBYTECODE=1 \
    SANDBOX_LISTEN=:8090 \
    SANDBOX_RUNTIME_BACKEND=docker
LABEL org.opencontainers.image.title="Cellbox server" \
      org.opencontainers.image.licenses="Apache-2.0"
EXPOSE 8090
HEALTHCHECK --interval=10s --timeout=8s --start-period=60s --retries=3 CMD ["python", "-I", "-c", "\
import http.client, sys; c = http.client.HTTPConnection('127.0.0.1', 8090, timeout=6); c.request('GET', '/healthz'); \
sys.exit(c.getresponse().status != 200)"]
ENTRYPOINT ["cellbox"]
CMD ["serve"]
