"""A model hub on loopback whose answers are damaged, for mutate_inputs.py."""
import hashlib
import http.server
import json
import threading

FILES = {"config.json": b"{}", "tokenizer.json": b"{}", "original/tokenizer.model": b"x",
         "model.safetensors": b"weights"}
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def rows():
    for path, data in FILES.items():
        blob = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        row = {"type": "file", "oid": blob, "size": len(data), "path": path}
        if path.endswith(".safetensors"):
            row["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
        yield row


class Hub:
    """Serves the answers of each case below /NUMBER."""

    def __init__(self):
        hub = self
        self.cases = {}

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *args):
                pass

            def do_GET(self):
                hub.answer(self)

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def add(self, number, mutate, draw):
        """Returns the address of a hub of its own, one of whose answers is damaged."""
        address = f"http://127.0.0.1:{self.server.server_address[1]}/{number}"
        link = f'<{address}/api/models/o/n/tree/{COMMIT}?cursor=1>; rel="next"'.encode()
        answers = {"revision": json.dumps({"sha": COMMIT}).encode(),
                   "tree": json.dumps(list(rows())).encode(), "link": b""}
        damaged = draw.choice(["revision", "tree", "tree", "tree", "link"])
        answers[damaged] = mutate(link if damaged == "link" else answers[damaged], draw)
        self.cases[str(number)] = answers
        return address

    def answer(self, request):
        path = request.path.split("?")[0].strip("/").split("/")
        answers = self.cases.get(path[0], {})
        what = path[5] if path[1:3] == ["api", "models"] and len(path) > 5 else ""
        body = answers.get(what) if what else FILES.get("/".join(path[5:]))
        try:
            request.send_response(200 if body is not None else 404)
            if what == "tree" and answers["link"] and "cursor" not in request.path:
                line = answers["link"].replace(b"\r", b"").replace(b"\n", b"").decode("latin-1")
                request.send_header("Link", line)
            request.send_header("Content-Length", str(len(body or b"")))
            request.end_headers()
            request.wfile.write(body or b"")
        except OSError:  # the program has closed the connection
            pass
