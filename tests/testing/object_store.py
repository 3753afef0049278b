"""A local S3 server (moto, which supports conditions and multipart uploads) with injected faults.

It is stricter than moto: it compares signatures with botocore's for the same request, and bodies with the signed
digest. Requests are answered one at a time, so that conditions hold as they do in a real store.
"""

import hashlib
import os
import socket
import struct
import sys
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.etree import ElementTree

os.environ.setdefault("S3_UPLOAD_PART_MIN_SIZE", str(64 << 10))  # moto's minimum; a real store requires 5 MiB.
os.environ.setdefault("MOTO_S3_DEFAULT_KEY_BUFFER_SIZE", str(64 << 20))  # In memory.
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from moto.moto_server.werkzeug_app import create_backend_app
from moto.s3.models import s3_backends

SECRET = "NeverShownSecretOfTheStore0123456789abcd"
REGION = "eu-test-1"


@dataclass
class Fault:
    """A fault for one request. `kind`: status, reset (in the middle of the answer), lost (done without an answer),
    truncated, slow, corrupt (on the way to the store), checksum (a wrong one in the answer), damaged (on the way back),
    pages (short lists)."""
    kind: str
    code: int = 500
    name: str = "InternalError"
    headers: dict = field(default_factory=dict)


@dataclass
class Request:
    method: str
    key: str  # BUCKET/KEY.
    query: dict
    headers: dict
    body: bytes
    who: str  # Id of the access key.

    @property
    def what(self):
        """Returns one word: put, part, complete, upload, abort, uploads, get, head, list, delete."""
        if "uploads" in self.query:
            return "upload" if self.method == "POST" else "uploads"
        if "partNumber" in self.query:
            return "part"
        if "uploadId" in self.query:
            return "complete" if self.method == "POST" else "abort"
        return "list" if "list-type" in self.query else self.method.lower()


class ObjectStore:
    def __init__(self, buckets=("titan",), secret=SECRET):
        self.app = create_backend_app("s3")
        self.secret = secret
        self.one_at_a_time = threading.Lock()
        self.requests, self.connect_requests = [], []
        self.rule = lambda request: None  # Returns a Fault or None; may wait.
        self.check_signatures = True
        self.clock = 0  # Seconds by which the store's Date is ahead.
        store = self

        class Handler(_Handler):
            pass

        Handler.store = store
        self.server = _Server(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        self.reset(buckets)

    def close(self):
        self.rule = lambda request: None
        self.server.shutdown()
        self.server.server_close()

    def reset(self, buckets=("titan",)):
        """Empties the store and removes all faults."""
        for account in list(s3_backends.values()):
            for backend in list(account.values()):
                backend.reset()
        for bucket in buckets:
            self.call("PUT", f"/{bucket}")
        self.rule, self.clock = lambda request: None, 0
        self.requests.clear()

    def environment(self, who="tester"):
        return {"AWS_ENDPOINT_URL": self.url, "AWS_REGION": REGION, "AWS_ACCESS_KEY_ID": who, "AWS_SECRET_ACCESS_KEY": self.secret}

    def call(self, method, path, headers=None, body=b""):
        """Calls moto directly and returns (status, headers, body)."""
        parts = urlsplit(path)
        environ = {"REQUEST_METHOD": method, "SCRIPT_NAME": "", "PATH_INFO": unquote(parts.path), "RAW_URI": path, "REQUEST_URI": path,
                   "QUERY_STRING": parts.query, "SERVER_NAME": "127.0.0.1", "SERVER_PORT": str(self.port),
                   "HTTP_HOST": f"127.0.0.1:{self.port}", "SERVER_PROTOCOL": "HTTP/1.1", "wsgi.version": (1, 0), "wsgi.url_scheme": "http",
                   "wsgi.input": BytesIO(body), "wsgi.errors": BytesIO(), "wsgi.multithread": True, "wsgi.multiprocess": False,
                   "wsgi.run_once": False, "CONTENT_LENGTH": str(len(body)), "wsgi.input_terminated": True}
        for name, value in (headers or {"Authorization": "AWS4-HMAC-SHA256 Credential=owner/20260101/us-east-1/s3/aws4_request"}).items():
            key = name.upper().replace("-", "_")
            environ[key if key in ("CONTENT_TYPE", "CONTENT_LENGTH") else "HTTP_" + key] = value
        answer = {}

        def start(status, headers, exc_info=None):
            answer["status"], answer["headers"] = int(status.split()[0]), headers

        with self.one_at_a_time:
            got = b"".join(self.app(environ, start))
        return answer["status"], answer["headers"], got

    def keys(self, bucket="titan", prefix=""):
        page = ElementTree.fromstring(self.call("GET", f"/{bucket}?list-type=2&prefix={prefix}")[2])
        return sorted(item.text for item in page.iter() if item.tag.endswith("}Key") or item.tag == "Key")

    def uploads(self, bucket="titan"):
        return self.call("GET", f"/{bucket}?uploads")[2].count(b"<UploadId>")

    def get(self, key, bucket="titan"):
        return self.call("GET", f"/{bucket}/{key}")[2]

    def put(self, key, body, bucket="titan"):
        return self.call("PUT", f"/{bucket}/{key}", body=body)

    def counted(self, *whats):
        return sum(request.what in whats for request in self.requests)


def signed_well(request, url, secret):
    """Returns whether botocore would make the same signature."""
    scheme = dict(part.strip().split("=", 1) for part in request.headers["authorization"].split(" ", 1)[1].split(","))
    signed = scheme["SignedHeaders"].split(";")
    key, date, region, service, _ = scheme["Credential"].split("/")
    auth = S3SigV4Auth(Credentials(key, secret), service, region)
    made = AWSRequest(method=request.method, url=url, headers={name: request.headers[name] for name in signed}, data=request.body)
    made.context["timestamp"] = request.headers["x-amz-date"]
    return scheme["Signature"] == auth.signature(auth.string_to_sign(made, auth.canonical_request(made)), made)


class _Server(ThreadingHTTPServer):
    def handle_error(self, request, client_address):
        if not isinstance(sys.exc_info()[1], OSError):  # Ignores connections of killed clients.
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # Sends head and body of an answer in one piece.
    disable_nagle_algorithm = True
    store = None

    def log_message(self, *args):
        pass

    def date_time_string(self, timestamp=None):
        return super().date_time_string(time.time() + self.store.clock)

    def handle_expect_100(self):
        self.send_response_only(100)
        self.end_headers()
        self.wfile.flush()
        return True

    def reset(self):
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()
        self.rfile, self.wfile = BytesIO(), BytesIO()

    def send(self, code, headers, body, limit=None):
        self.send_response(code)
        for name, value in headers:
            if name.lower() not in ("content-length", "connection", "date", "server"):
                self.send_header(name, value)
        length = dict((name.lower(), value) for name, value in headers).get("content-length", str(len(body)))
        self.send_header("Content-Length", length if self.command == "HEAD" else str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body if limit is None else body[:limit])

    def refuse(self, code, name, headers=()):
        body = f"<?xml version='1.0'?><Error><Code>{name}</Code><Message>injected</Message></Error>".encode()
        self.send(code, [("Content-Type", "application/xml"), *headers], b"" if self.command == "HEAD" else body)

    def answer(self):
        store = self.store
        parts = urlsplit(self.path)
        size = int(self.headers.get("Content-Length") or 0)
        headers = {name.lower(): value for name, value in self.headers.items()}
        who = headers.get("authorization", "Credential=nobody/").split("Credential=")[1].split("/")[0]
        request = Request(self.command, unquote(parts.path).strip("/"), dict(parse_qsl(parts.query, keep_blank_values=True)), headers, b"", who)
        fault = None
        try:
            request.body = self.rfile.read(size)
            store.requests.append(request)
            fault = store.rule(request)
        except OSError:
            return self.reset()
        if fault and fault.kind == "reset":
            return self.reset()
        if fault and fault.kind == "status":
            return self.refuse(fault.code, fault.name, fault.headers.items())
        if store.check_signatures and not signed_well(request, store.url + self.path, store.secret):
            return self.refuse(403, "SignatureDoesNotMatch")
        body = request.body
        if fault and fault.kind == "corrupt" and body:
            body = bytes([body[0] ^ 1]) + body[1:]
        if headers.get("x-amz-content-sha256") != hashlib.sha256(body).hexdigest():
            return self.refuse(400, "XAmzContentSHA256Mismatch")
        path = self.path
        if fault and fault.kind == "pages" and request.what == "list":
            path += "&max-keys=3"
        code, answers, body = store.call(self.command, path, headers, body)
        if fault and fault.kind == "lost":
            return self.reset()
        if fault and fault.kind == "checksum":
            answers = [*[one for one in answers if one[0].lower() != "x-amz-checksum-crc32c"], ("x-amz-checksum-crc32c", "AAAAAA==")]
        if fault and fault.kind == "damaged" and body:
            body = bytes([body[0] ^ 1]) + body[1:]
        try:
            if fault and fault.kind == "truncated":
                self.send(code, answers, body, len(body) // 2)
                self.wfile.flush()
                return self.reset()
            if fault and fault.kind == "slow":
                time.sleep(0.05)
            self.send(code, answers, body)
        except OSError:
            self.reset()

    def do_CONNECT(self):  # Acts as the proxy to another store, and forwards nothing.
        self.store.connect_requests.append((self.path, dict(self.headers)))
        self.refuse(403, "NoWayThrough")

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = answer
