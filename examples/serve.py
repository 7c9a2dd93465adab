"""
A service for one model
=======================

Serves predictions over HTTP, one thread per client. New facts replace the model by a larger one.
To serve a stored model, call ``Service(SheafModel.load("model"), 8000).serve_forever()``.
"""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit
from urllib.request import urlopen

import torch

from sheafprop import KnowledgeGraph, SheafModel
from sheafprop.kge import TransE
from sheafprop.pretrained import StoredModel

# %%
# The service: ``GET /predict?head=H&relation=R&k=K``, and ``POST /extend`` of a list of facts.


class Service(ThreadingHTTPServer):
    daemon_threads, request_queue_size = True, 128

    def __init__(self, model, port=0):
        super().__init__(("127.0.0.1", port), Handler)
        self.model, self.one_at_a_time = model, threading.Lock()

    def extend(self, facts):
        with self.one_at_a_time:  # whoever asks is served by the old model meanwhile
            self.model = self.model.extend(facts)
            return self.model.entities().tail(self.model.report.new_entities)


class Handler(BaseHTTPRequestHandler):
    protocol_version, disable_nagle_algorithm = "HTTP/1.1", True

    def do_GET(self):
        asked = {"k": "10"} | dict(parse_qsl(urlsplit(self.path).query))
        model = self.server.model
        self.answer(lambda: model.predict_tails(asked["head"], asked["relation"], int(asked["k"])))

    def do_POST(self):
        length = int(self.headers.get("Content-Length", 0))
        self.answer(lambda: self.server.extend(json.loads(self.rfile.read(length))))

    def answer(self, work):
        try:
            status, value = 200, work().to_dict("records")
        except (KeyError, ValueError) as error:  # a part that is missing, an unknown label
            known = {KeyError: "the request has no ", json.JSONDecodeError: "not JSON: "}
            status, value = 400, {"error": f"{known.get(type(error), '')}{error}"}
        body = json.dumps(value, ensure_ascii=False).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


# %%
# A model whose entities are the numbers 0 to 9, with the numbers as vectors, and new facts.
if __name__ == "__main__":
    graph = KnowledgeGraph.from_labels([(str(i), "plus 2", str(i + 2)) for i in range(8)])
    kge = TransE(graph.num_nodes, graph.num_relations, 1, entity_constraint=None)
    numbers = torch.tensor([[float(label)] for label in graph.entities])
    kge.load_state_dict({"node_emb.weight": numbers, "rel_emb.weight": torch.tensor([[2.0]])})
    stored = StoredModel.from_training(kge, graph.entities, graph.relations, graph.triples)
    service = Service(SheafModel(stored))
    threading.Thread(target=service.serve_forever, daemon=True).start()
    place = f"http://127.0.0.1:{service.server_port}"
    print(json.load(urlopen(f"{place}/extend", b'[["ten", "plus 2", "9"]]')))
    print(json.load(urlopen(f"{place}/predict?head=5&relation=plus+2&k=1")))
    service.shutdown()
