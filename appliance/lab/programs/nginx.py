# SPDX-License-Identifier: Apache-2.0
"""nginx, with TLS or without, and what asks it: curl and openssl's s_client."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Final

from appliance.lab.lab import Lab, endpoint
from appliance.lab.processes import Process, python_environment
from appliance.lab.programs.program import Dialogue, Endpoint, ServerProgram, directory, environment, run

NEWS_PORT: Final = 8099

_CONFIG = """\
user root;
worker_processes 1;
daemon off;
pid {home}/nginx.pid;
error_log stderr notice;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_body_temp_path {home}/body;
    proxy_temp_path {home}/proxy;
    fastcgi_temp_path {home}/fastcgi;
    uwsgi_temp_path {home}/uwsgi;
    scgi_temp_path {home}/scgi;
    keepalive_timeout 1d;
    proxy_read_timeout 1d;
    server {{
{listen}
{tls}
        default_type text/plain;
        location / {{
            return 200 "connection $connection request $connection_requests from $remote_addr:$remote_port\\n";
        }}
        location /news {{ proxy_pass http://127.0.0.1:{news}; }}
    }}
}}
"""


class Nginx(ServerProgram):
    """Its every answer is the line `connection N request N from ADDRESS:PORT`: which connection it came by, as nginx
    counts them, the how many-th request that was, and the client's address as nginx has it. It probes quiet clients
    every second."""

    def __init__(self, lab: Lab, space: str, listen: Sequence[Endpoint], tls: bool = False,
                 http2: bool = False) -> None:  # fmt: skip
        self._lab, self._space = lab, space
        self.home = directory(lab, "nginx")
        self.certificate = self.home / "certificate.pem"
        key = self.home / "key.pem"
        if tls:
            run(lab, ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                      "-days", "2", "-subj", "/CN=server.lab", "-addext", "subjectAltName=DNS:server.lab",
                      "-keyout", str(key), "-out", str(self.certificate)])  # fmt: skip
        config = self.home / "nginx.conf"
        how = (" ssl" if tls else "") + (" http2" if http2 else "")
        config.write_text(_CONFIG.format(
            home=self.home,
            news=NEWS_PORT,
            listen="\n".join(f"        listen {endpoint(*one)}{how} so_keepalive=1s:1s:9;" for one in listen),
            tls=f"        ssl_certificate {self.certificate};\n        ssl_certificate_key {key};" if tls else "",
        ))  # fmt: skip
        super().__init__(
            lab, space, ["/usr/sbin/nginx", "-c", str(config), "-p", str(self.home)], "start worker process "
        )

    def http2_session(self, space: str, to: Endpoint) -> Dialogue:
        """A client that speaks HTTP/2 alone, on one connection: told a path, it prints the answer."""
        argv = [sys.executable, "-m", "appliance.peers.http2_client", f"http://{endpoint(*to)}"]
        return Dialogue(self._lab, space, argv, env=python_environment())

    def news(self) -> Dialogue:
        """What answers the next request for /news, with the first line that it is told."""
        answer = "{ read -r news; printf 'HTTP/1.0 200 OK\\r\\n\\r\\n%s\\n' \"$news\"; }"
        listening = f"nc -N -l -v 127.0.0.1 {NEWS_PORT}"
        answering = Dialogue(self._lab, self._space, ["sh", "-c", f"{answer} | {listening}"])
        answering.hear("Listening on")
        return answering

    def tls_session(self, space: str, to: Endpoint) -> Dialogue:
        """openssl s_client, which prints the answers that the server gives to the requests it is told."""
        argv = ["openssl", "s_client", "-quiet", "-connect", endpoint(*to), "-servername", "server.lab",
                "-CAfile", str(self.certificate), "-verify_return_error"]  # fmt: skip
        return Dialogue(self._lab, space, argv)

    def fetch(self, space: str, to: Endpoint, times: int = 1, pause_s: int = 1, tls: bool = False) -> Process:
        """curl, which asks `times`, some seconds apart, over one connection, and prints for each answer its text and
        `connects N`, the number of connections it had to make. It probes a quiet server every second."""
        where = f"https://server.lab:{to[1]}/" if tls else f"http://{endpoint(*to)}/"
        options = ["--rate", f"{60 // pause_s}/m"] if times > 1 else []
        if tls:
            host = f"[{to[0]}]" if ":" in to[0] else to[0]
            options += ["--cacert", str(self.certificate), "--resolve", f"server.lab:{to[1]}:{host}"]
        argv = ["curl", "--silent", "--show-error", "--no-buffer", "--max-time", "30", "--keepalive-time", "1",
                "--write-out", "connects %{num_connects}\\n", *options, *[where] * times]  # fmt: skip
        return self._lab.run(space, argv, env=environment(self._lab), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
