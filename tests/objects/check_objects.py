#!/usr/bin/env python3
"""Trains on text in an S3 server, through a proxy that fails, and compares with the same files here:
check_objects.py PROGRAM

Runs in a Python that has moto[server] and pyarrow. The server refuses requests without a right signature. The proxy
answers 503, cuts connections before and in the middle of an answer, and answers slowly, at random.
"""
import gzip
import http.client
import http.server
import json
import os
import pathlib
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

BUCKET = "texts"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start_server(port, environment):
    server = subprocess.Popen([sys.executable, "-m", "moto.server", "-p", str(port)], env=environment,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for _ in range(300):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/moto-api/", timeout=2)
            return server
        except OSError:
            time.sleep(0.1)
    sys.exit("check_objects: the server did not start")


class Proxy(http.server.BaseHTTPRequestHandler):
    """Passes requests on to the server, or fails, as `draw` says."""
    protocol_version = "HTTP/1.1"
    port = 0
    draw = random.Random()
    share = 0.0
    failures = 0

    def log_message(self, *args):
        pass

    def handle_request(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fault = self.draw.choice(["503", "cut", "half", "slow"]) if self.draw.random() < self.share else None
        Proxy.failures += fault is not None
        if fault == "503":
            self.send_response(503)
            self.send_header("Content-Length", "0")
            return self.end_headers()
        if fault == "cut":
            self.close_connection = True
            return None
        server = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        server.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            server.putheader(name, value)
        server.endheaders(body)
        reply = server.getresponse()
        data = reply.read()
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            if name.lower() not in {"content-length", "transfer-encoding", "connection", "date", "server"}:
                self.send_header(name, value)
        # The answer to HEAD has no body, and says how long it would be.
        length = reply.headers["Content-Length"] if self.command == "HEAD" else len(data)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        if fault == "slow":
            time.sleep(0.3)
        self.wfile.write(data[:len(data) // 2] if fault == "half" else data)
        self.close_connection = fault == "half"
        return None

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_request


def write_texts(folder, draw):
    import pyarrow
    import pyarrow.parquet
    words = [f"word{i}" for i in range(500)]
    texts = [" ".join(draw.choices(words, k=60)) for _ in range(3000)]
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    (folder / "plain").mkdir(parents=True)
    (folder / "plain/a.jsonl").write_text(lines)
    (folder / "packed").mkdir()
    (folder / "packed/a.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (folder / "packed/b.jsonl.gz").write_bytes(gzip.compress(lines.upper().replace("TEXT", "text").encode()))
    (folder / "columns").mkdir()
    pyarrow.parquet.write_table(pyarrow.table({"id": list(range(3000)), "text": texts}), folder / "columns/a.parquet",
                                row_group_size=500)


def key_that_may_read(port):
    import boto3
    options = {"endpoint_url": f"http://127.0.0.1:{port}", "region_name": "us-east-1", "aws_access_key_id": "any",
               "aws_secret_access_key": "any"}
    iam = boto3.client("iam", **options)
    iam.create_user(UserName="reader")
    iam.put_user_policy(UserName="reader", PolicyName="read", PolicyDocument=json.dumps(
        {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}))
    key = iam.create_access_key(UserName="reader")["AccessKey"]
    return key["AccessKeyId"], key["SecretAccessKey"]


def train(program, scratch, name, path, environment, *more):
    words = [program, "train", "--training.dataset=c4", f"--training.dataset_path={path}", "--model.tokenizer_path=bytes",
             "--model.layers=2", "--model.dim=64", "--model.heads=2", "--model.vocab=258", "--training.seq_len=128",
             "--training.local_batch_size=2", "--training.steps=40", "--metrics.log_freq=1", "--job.device=cpu",
             f"--job.dump_folder={scratch / name}", *more]
    environment = environment | {"TOKAMAK_CACHE": str(scratch / f"{name}.cache")}
    return subprocess.run(words, env=environment, capture_output=True, text=True)


def losses(scratch, name):
    return [json.loads(line)["loss"] for line in (scratch / name / "metrics.jsonl").read_text().splitlines()]


def check(program, scratch, draw):
    folder = scratch / "texts"
    write_texts(folder, draw)
    port = free_port()
    # The calls of the set-up, before the signatures of each one are checked.
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    server = start_server(port, os.environ | {"INITIAL_NO_AUTH_ACTION_COUNT": str(4 + len(files))})
    try:
        import boto3
        key, secret = key_that_may_read(port)
        s3 = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}", region_name="us-east-1", aws_access_key_id=key,
                          aws_secret_access_key=secret)
        s3.create_bucket(Bucket=BUCKET)
        for path in files:
            s3.upload_file(str(path), BUCKET, f"data set/{path.relative_to(folder)}")
        Proxy.port, Proxy.draw = port, draw
        proxy = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        environment = os.environ | {"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret, "AWS_REGION": "us-east-1",
                                    "AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.server_address[1]}"}
        wrong = 0
        for kind in ("plain", "packed", "columns"):
            Proxy.share, Proxy.failures = 0.4, 0
            far = train(program, scratch, f"{kind}-far", f"s3://{BUCKET}/data set/{kind}", environment)
            here = train(program, scratch, f"{kind}-here", folder / kind, environment)
            ok = far.returncode == here.returncode == 0 and losses(scratch, f"{kind}-far") == losses(scratch, f"{kind}-here")
            print(f"{kind}: {'equal losses' if ok else 'WRONG'}, {Proxy.failures} faults", flush=True)
            if not ok:
                print(far.stderr[-600:], here.stderr[-600:])
            wrong += not ok
        Proxy.share = 0.0
        refusals = {
            "a wrong secret": (environment | {"AWS_SECRET_ACCESS_KEY": secret[:-1] + "x"}, f"s3://{BUCKET}/data set/plain"),
            "no such bucket": (environment, "s3://no-such-bucket/a"),
            "no such key": (environment, f"s3://{BUCKET}/nothing"),
        }
        for what, (with_key, path) in refusals.items():
            found = train(program, scratch, "refused", path, with_key, "--dry-run")
            needs = [line for line in found.stdout.splitlines() if line.startswith("needs: training.dataset_path")]
            print(f"{what}: {needs[0] if needs else 'NOT REFUSED'}", flush=True)
            wrong += found.returncode != 2 or len(needs) != 1
        return wrong
    finally:
        server.kill()


def main():
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(1 << 30)
    print(f"seed {seed}")
    with tempfile.TemporaryDirectory() as scratch:
        return check(str(pathlib.Path(sys.argv[1]).resolve()), pathlib.Path(scratch), random.Random(seed))


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
