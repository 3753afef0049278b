"""Serves a local Hugging Face hub: the API that downloads use, a second server for the bytes of large files, and
injected faults.

    fake_hub.py FOLDER [ORG/NAME]      serves the folder's files as a repository, and prints the hub's address
"""

import hashlib
import json
import socket
import struct
import sys
import threading
import urllib.parse
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

LARGE = 20_000  # Files of at least this many bytes are kept outside git, like files that end in one of LARGE_ENDINGS.
LARGE_ENDINGS = (".safetensors", ".gz", ".model", ".bin")


def git_blob(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@dataclass
class Fault:
    """A fault for the next `times` requests with a path that ends with `path`, on one server ("hub" or "cdn") or on
    any."""

    kind: str
    path: str = ""
    value: object = None
    times: int = 1
    server: str = ""
    headers: dict = field(default_factory=dict)


@dataclass
class Request:
    server: str
    method: str
    path: str
    headers: dict

    @property
    def range(self):
        return self.headers.get("range")

    @property
    def token(self):
        return self.headers.get("authorization")


class Repo:
    def __init__(self, kind="models"):
        self.kind = kind
        self.commits = {}  # Commit hash -> {path: bytes}.
        self.branches = {}
        self.listed = {}  # Entries of the tree that are listed as they are, or replace a file's entry.

    def commit(self, files, branch="main"):
        contents = sorted((path, git_blob(content)) for path, content in files.items())
        name = hashlib.sha1(repr((contents, branch, len(self.commits))).encode()).hexdigest()
        self.commits[name] = dict(files)
        self.branches[branch] = name
        return name

    def find(self, revision):
        return revision if revision in self.commits else self.branches.get(revision)

    @staticmethod
    def is_large(path, content):
        return len(content) >= LARGE or path.endswith(LARGE_ENDINGS)

    def tree(self, commit):
        entries = {}
        for path, content in self.commits[commit].items():
            for depth in range(1, path.count("/") + 1):
                folder = "/".join(path.split("/")[:depth])
                entries[folder] = {"type": "directory", "oid": git_blob(folder.encode()), "size": 0, "path": folder}
            entries[path] = {"type": "file", "oid": git_blob(content), "size": len(content), "path": path}
            if self.is_large(path, content):
                sha = hashlib.sha256(content).hexdigest()
                pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha}\nsize {len(content)}\n".encode()
                entries[path] |= {"oid": git_blob(pointer), "lfs": {"oid": sha, "size": len(content), "pointerSize": len(pointer)}}
        return [*({**entries, **self.listed}).values()]


class Quiet(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request, address):
        """Ignores the errors of connections that killed clients leave."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, address)


class FakeHub:
    def __init__(self, page=1000, tls=None):
        """`tls`: the hub's ssl.SSLContext; the server that it redirects to uses plain HTTP."""
        self.repos, self.gated, self.private = {}, set(), set()
        self.renamed = {}
        self.token = None  # The token that opens gated and private repositories.
        self.faults, self.log = [], []
        self.lock = threading.Lock()
        self.gates = {}  # Events by name, for the fault "wait".
        self.page = page
        self.blobs = {}
        self.tls = tls
        self.servers = {name: self._serve(name) for name in ("hub", "cdn")}

    def _serve(self, name):
        handler = type("Handler", (Handler,), {"hub": self, "name": name})
        server = Quiet(("127.0.0.1", 0), handler)
        if self.tls and name == "hub":
            server.socket = self.tls.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return server

    def url(self, name="hub"):
        return f"{'https' if self.tls and name == 'hub' else 'http'}://127.0.0.1:{self.servers[name].server_port}"

    def close(self):
        for gate in self.gates.values():
            gate.set()
        for server in self.servers.values():
            server.shutdown()
            server.server_close()

    def add(self, repo_id, files, kind="models"):
        self.repos[(kind, repo_id)] = repo = Repo(kind)
        repo.commit(files)
        return repo

    def order(self, kind, path="", **more):
        fault = Fault(kind, path, **more)
        with self.lock:
            self.faults.append(fault)
        return fault

    def take_fault(self, server, path):
        with self.lock:
            for fault in self.faults:
                if fault.times > 0 and path.endswith(fault.path) and fault.server in ("", server):
                    fault.times -= 1
                    return fault
        return None

    def requests(self, server=None, ending=""):
        with self.lock:
            return [r for r in self.log if server in (None, r.server) and r.path.split("?")[0].endswith(ending)]

    def forget(self):
        with self.lock:
            self.log.clear()
            self.faults.clear()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Headers and body are two writes; with Nagle's algorithm the second would wait for the first to be acknowledged.
    disable_nagle_algorithm = True
    hub: FakeHub
    name: str

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        headers = {name.lower(): value for name, value in self.headers.items()}
        with self.hub.lock:
            self.hub.log.append(Request(self.name, self.command, self.path, headers))
        if "://" in self.path:  # The client uses this server as its proxy.
            self.path = "/" + self.path.split("/", 3)[3]
        path = urllib.parse.unquote(self.path.split("?")[0])
        fault = self.hub.take_fault(self.name, path)
        if fault and self.fails(fault):
            return
        if self.name == "cdn":
            self.send_file(self.hub.blobs[path.split("/")[2]], {"ETag": '"of-the-cdn"'}, fault)
        elif path.startswith("/api/"):
            self.api(path)
        else:
            self.resolve(path, fault)

    def fails(self, fault):
        """Returns whether the fault has sent the response itself."""
        if fault.kind == "status":
            self.answer(fault.value, b"<html>no</html>", fault.headers)
        elif fault.kind == "redirect":
            self.answer(302, b"", {"Location": fault.value})
        elif fault.kind == "text":
            self.answer(200, fault.value, fault.headers)
        elif fault.kind == "reset":
            self.reset()
        elif fault.kind == "call":
            fault.value()
            return False
        else:
            return False
        return True

    def reset(self):
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True

    def answer(self, code, body=b"", headers=None):
        self.send_response(code)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def error(self, code, word, text):
        self.answer(code, json.dumps({"error": text}).encode(), {"X-Error-Code": word, "X-Error-Message": text})

    def repo_of(self, kind, repo_id):
        """Returns the repository, or sends an error and returns None."""
        known = self.headers.get("Authorization") == f"Bearer {self.hub.token}" and self.hub.token
        if (kind, repo_id) not in self.hub.repos or (repo_id in self.hub.private and not known):
            self.error(404 if known else 401, "RepoNotFound", "Repository not found")
            return None
        if repo_id in self.hub.gated and not known:
            self.error(403 if self.headers.get("Authorization") else 401, "GatedRepo", f"Access to model {repo_id} is restricted.")
            return None
        return self.hub.repos[(kind, repo_id)]

    def api(self, path):
        kind, *rest = path[len("/api/"):].split("/")
        mark = next((word for word in ("revision", "tree") if word in rest), None)
        at = rest.index(mark) if mark else len(rest)
        repo_id, revision, folder = "/".join(rest[:at]), "/".join(rest[at + 1:]) or "main", ""
        if mark == "tree":  # The path names a commit, or a folder in it.
            revision, folder = rest[at + 1], "".join(f"{name}/" for name in rest[at + 2:])
        if repo_id in self.hub.renamed:
            return self.answer(307, b"", {"Location": self.path.replace(repo_id, self.hub.renamed[repo_id], 1)})
        repo = self.repo_of(kind, repo_id)
        if repo is None:
            return None
        commit = repo.find(revision)
        if commit is None:
            return self.error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        if mark == "tree":
            return self.send_tree(repo, commit, folder)
        siblings = [{"rfilename": entry["path"]} for entry in repo.tree(commit) if entry["type"] == "file"]
        info = {"_id": "0", "id": repo_id, "modelId": repo_id, "sha": commit, "private": False, "tags": [], "siblings": siblings}
        return self.answer(200, json.dumps(info).encode(), {"Content-Type": "application/json"})

    def send_tree(self, repo, commit, folder):
        query = dict(urllib.parse.parse_qsl(urllib.parse.urlparse(self.path).query))
        entries = [entry for entry in repo.tree(commit) if entry["path"].startswith(folder)]
        if folder and not entries:
            return self.error(404, "EntryNotFound", f"{folder} does not exist")
        if query.get("recursive", "").lower() not in ("1", "true"):
            entries = [entry for entry in entries if "/" not in entry["path"][len(folder):]]
        begin = int(query.get("cursor", "0"))
        headers = {"Content-Type": "application/json"}
        if begin + self.hub.page < len(entries):
            # Like a mirror: the link names the hub that is mirrored.
            headers["Link"] = f'<{self.hub.url()}{self.path.split("?")[0]}?recursive=true&cursor={begin + self.hub.page}>; rel="next"'
        self.answer(200, json.dumps(entries[begin:begin + self.hub.page]).encode(), headers)

    def resolve(self, path, fault):
        kind = "models"
        words = path[1:].split("/")
        if words[0] == "datasets":
            kind, words = "datasets", words[1:]
        at = words.index("resolve")
        repo = self.repo_of(kind, "/".join(words[:at]))
        if repo is None:
            return None
        commit, name = repo.find(words[at + 1]), "/".join(words[at + 2:])
        if commit is None:
            return self.error(404, "RevisionNotFound", "Invalid rev id")
        if name not in repo.commits[commit]:
            return self.error(404, "EntryNotFound", "Entry not found")
        content = repo.commits[commit][name]
        headers = {"X-Repo-Commit": commit}
        if fault and fault.kind == "headers":
            headers |= fault.headers
        if not repo.is_large(name, content):
            return self.send_file(content, {"ETag": f'"{git_blob(content)}"', **headers}, fault)
        sha = hashlib.sha256(content).hexdigest()
        self.hub.blobs[sha] = content
        linked = {"X-Linked-Etag": f'"{sha}"', "X-Linked-Size": str(len(content)), "ETag": '"of-the-redirect"', **headers}
        return self.answer(302, b"", {"Location": f"{self.hub.url('cdn')}/blob/{sha}/{name}?signature=secret-of-the-cdn", **linked})

    def send_file(self, content, headers, fault):
        kind = fault.kind if fault else ""
        if kind == "bytes":
            content = fault.value(content)
        begin, end, code = 0, len(content), 200
        requested = self.headers.get("Range")
        if requested and kind != "no ranges":
            first, last = requested.removeprefix("bytes=").split("-")
            begin, end, code = int(first), min(int(last) + 1 if last else len(content), len(content)), 206
            if begin >= len(content):
                return self.answer(416, b"", {"Content-Range": f"bytes */{len(content)}"})
            if kind == "wrong range":
                begin, end = begin + fault.value, min(end + fault.value, len(content))
            headers = {**headers, "Content-Range": f"bytes {begin}-{end - 1}/{len(content)}"}
        body = content[begin:end]
        self.send_response(code)
        length = fault.value if kind == "short" else len(body)
        for name, value in {"Content-Length": str(length), "Accept-Ranges": "bytes", **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return None
        if kind == "wait":
            after, gate = fault.value
            self.wfile.write(body[:after])
            self.hub.gates.setdefault(gate, threading.Event()).wait(60)
            body = body[after:]
        if kind == "short":
            body = body[:fault.value]
        if kind == "drop":
            self.wfile.write(body[:fault.value])
            self.wfile.flush()
            return self.reset() if fault.headers else self.hang_up()
        try:
            self.wfile.write(body)
        except OSError:  # The client has closed the connection.
            self.close_connection = True
        return None

    def hang_up(self):
        self.connection.shutdown(socket.SHUT_RDWR)
        self.close_connection = True


def main():
    folder = Path(sys.argv[1])
    files = {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
    hub = FakeHub()
    hub.add(sys.argv[2] if len(sys.argv) > 2 else "org/" + folder.name, files)
    print(hub.url(), flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
