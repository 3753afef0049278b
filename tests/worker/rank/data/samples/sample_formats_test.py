"""Compares files of samples with the packages that write and read them: Titan reads the same samples as Python's tarfile with
the grouping of Hugging Face's datasets, in every format of tar that tarfile writes, and the same rows as pyarrow, in any order."""

import io
import json
import os
import pathlib
import random
import sys
import subprocess
import tarfile
import unittest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
TESTS = pathlib.Path(__file__).resolve().parents[4]
sys.path[:0] = [str(TESTS / "worker/rank/data"), str(TESTS / "common/io/hub")]
import pyarrow as pa
import pyarrow.parquet as pq
from datasets.packaged_modules.webdataset.webdataset import WebDataset
from datasets.utils.file_utils import ArchiveIterable
from fake_hub import FakeHub
from request_program import BIN, RequestProgram

PARQUET = (BIN / "titan-parquet.so").exists()
FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


class SampleFormats(RequestProgram):
    PROGRAM = "read_samples"

    def read(self, *files, **request):
        answer = self.reply_to({"files": [str(file) for file in files], **request})
        self.assertNotIn("error", answer)
        for sample in answer["samples"]:
            sample["parts"] = [(kind, bytes.fromhex(digits)) for kind, digits in sample["parts"]]
        return answer["samples"]

    def write_tar(self, name, members, **options):
        path = self.root / name
        with tarfile.open(path, "w", **options) as tar:
            for member, content in members:
                info = tarfile.TarInfo(member)
                if content is None:
                    info.type = tarfile.DIRTYPE
                    tar.addfile(info)
                    continue
                info.size, info.mtime = len(content), 1.5
                tar.addfile(info, io.BytesIO(content))
        return path

    def members(self, random_, longest):
        """Members of samples, some in folders, some with long names, with members of other kinds between them."""
        for number in range(60):
            folder = random_.choice(["", "", "a/", "./b.c/", "d" * random_.randrange(1, longest) + "/"])
            name = "".join(random_.choice("abcé漢_-") for _ in range(random_.randrange(1, longest // 3)))
            key = f"{folder}{number:05}{name}"
            if random_.random() < 0.2:
                yield folder or "folder/", None
            kinds = [("jpg", random_.randbytes(random_.randrange(0, 3000))), ("txt", f"caption {number} é".encode()),
                     ("json", json.dumps({"n": number, "x": None}).encode())]
            random_.shuffle(kinds)
            for kind, content in kinds[: random_.randrange(1, 4)]:
                yield f"{key}.{kind}", content
            if random_.random() < 0.2:
                yield random_.choice(["README", ".hidden.jpg", "__index__.json", "x/._1.jpg"]), b"{}"

    def test_tar_as_tarfile_writes_it(self):
        for seed, (name, format_) in enumerate(FORMATS.items()):
            # ustar has room for 100 bytes of name and 155 of folder.
            members = list(self.members(random.Random(seed), 90 if name == "ustar" else 400))
            if name == "ustar":
                members = [(m.encode("ascii", "ignore").decode(), content) for m, content in members]
            headers = {"pax_headers": {"comment": "x" * 700}} if name == "pax" else {}
            path = self.write_tar(f"{name}.tar", members, format=format_, **headers)
            expected = list(WebDataset._get_pipeline_from_tar(str(path), ArchiveIterable(lambda p=path: iter_tar(p))))
            found = self.read(path)
            self.assertEqual([e["__key__"] for e in expected], [s["key"] for s in found])
            good = 0
            for example, sample in zip(expected, found, strict=True):
                whole = "jpg" in example and "txt" in example
                self.assertEqual(whole, sample["problem"] == "", sample["problem"])
                good += whole
                if whole:
                    self.assertEqual([("image", example["jpg"]), ("text", example["txt"].encode())], sample["parts"])
                    self.assertEqual(example.get("json"), sample["fields"])
            self.assertGreater(good, 10)
            order = random.Random(seed).sample(range(len(found)), len(found))
            self.assertEqual([found[i] for i in order], self.read(path, order=order))

    def test_archives_of_a_hub(self):
        files = {}
        for split, shard in [("train", 0), ("train", 1), ("validation", 0)]:
            members = [(f"{i:04}.{kind}", random.Random(i).randbytes(40_000) if kind == "jpg" else f"{split} {shard} {i}".encode())
                       for i in range(20) for kind in ("jpg", "txt")]
            files[f"data/cc12m-{split}-{shard}.tar"] = self.write_tar(f"{split}-{shard}.tar", members).read_bytes()
        files["lists/train-0.parquet"] = b"PAR1"
        hub = FakeHub()
        self.addCleanup(hub.close)
        hub.add("pixparse/cc12m-wds", files, kind="datasets")
        path = "hf://datasets/pixparse/cc12m-wds"

        def read(**request):
            """Reads in a new process, as a resumed job does."""
            environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
            environment |= {"HF_ENDPOINT": hub.url(), "HF_HOME": str(self.root / "home")}
            environment.pop("HF_HUB_OFFLINE", None)
            request = {"dataset": "cc12m-wds", "path": f"{path}/data", "records": str(self.root / "records"), **request}
            done = subprocess.run([BIN.parent / "tests" / self.PROGRAM], input=json.dumps(request), text=True, check=True,
                                  capture_output=True, env=environment, timeout=60)
            return json.loads(done.stdout)

        expected = self.read(self.root / "train-0.tar", self.root / "train-1.tar")
        self.assertEqual(40, len(expected))
        for request in [{}, {"order": [39, 0, 20, 7, 8, 9]}]:
            found = read(**request)
            self.assertNotIn("error", found)
            parts = [[(kind, bytes.fromhex(digits)) for kind, digits in sample["parts"]] for sample in found["samples"]]
            self.assertEqual([expected[i]["parts"] for i in request.get("order", range(40))], parts)
        self.assertEqual(20, len(read(path=f"{path}/data/cc12m-train-1.tar")["samples"]))
        self.assertEqual(20, len(read(path=f"{path}/data/*validation*")["samples"]))
        self.assertIn("titanctl assets get pixparse/cc12m-wds", read(path=f"{path}/lists")["error"])
        self.assertIn("did you mean 'obelics'", read(dataset="obelic")["error"])

    @unittest.skipUnless(PARQUET, "built without Arrow")
    def test_parquet_as_pyarrow_writes_it(self):
        random_ = random.Random(7)
        images = [random_.randbytes(random_.randrange(1, 20_000)) for _ in range(150)]
        captions = [f"caption {i} \"é\"\n" for i in range(150)]
        structs = pa.array([{"bytes": image, "path": None} for image in images], pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
        tables = [pa.table({"image": structs, "caption": [[c, "other"] for c in captions]}),
                  pa.table({"id": range(150), "image": pa.array(images), "text": captions}),
                  pa.table({"jpg": structs, "txt": captions})]
        expected = [[("image", image), ("text", caption.encode())] for image, caption in zip(images, captions, strict=True)]
        for number, table in enumerate(tables):
            for rows in (7, 100, 1000):
                path = self.root / f"{number}-{rows}.parquet"
                pq.write_table(table, path, row_group_size=rows, data_page_size=30_000)
                found = self.read(path, format="parquet")
                self.assertEqual(expected, [sample["parts"] for sample in found])
                self.assertEqual([str(i) for i in range(150)], [sample["key"] for sample in found])
                order = random_.sample(range(150), 150)
                self.assertEqual([expected[i] for i in order], [s["parts"] for s in self.read(path, format="parquet", order=order)])
        named = self.read(self.root / "1-7.parquet", format="parquet", image_key="image", caption_key="text")
        self.assertEqual(expected, [sample["parts"] for sample in named])

    @unittest.skipUnless(PARQUET, "built without Arrow")
    def test_interleaved_parquet(self):
        random_ = random.Random(8)
        everything = bytes(range(256))  # Bytes that are neither UTF-8 nor JSON.
        rows = []
        for _ in range(80):
            kinds = [random_.random() < 0.5 for _ in range(random_.randrange(1, 8))]
            images = [everything + random_.randbytes(300) if kind else None for kind in kinds]
            rows.append((images, [None if kind else f"text {random_.random()} \"\\" for kind in kinds]))
        expected = [[("image", i) if i is not None else ("text", t.encode()) for i, t in zip(*row, strict=True)] for row in rows]
        structs = [[None if i is None else {"bytes": i, "path": "x"} for i in images] for images, _ in rows]
        struct = pa.list_(pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
        texts = [row[1] for row in rows]
        for number, column in enumerate([pa.array([row[0] for row in rows], pa.list_(pa.binary())), pa.array(structs, struct)]):
            path = self.root / f"lists-{number}.parquet"
            pq.write_table(pa.table({"images": column, "metadata": ["{}"] * 80, "texts": texts}), path, row_group_size=33)
            self.assertEqual(expected, [s["parts"] for s in self.read(path, format="parquet", interleaved=True)])
            order = random_.sample(range(80), 80)
            found = self.read(path, format="parquet", interleaved=True, order=order)
            self.assertEqual([expected[i] for i in order], [sample["parts"] for sample in found])
        addresses = self.root / "addresses.parquet"
        pq.write_table(pa.table({"images": [["https://x/1.jpg", None]], "texts": [[None, "x"]]}), addresses)
        self.assertIn("address", self.read(addresses, format="parquet", interleaved=True)[0]["problem"])

    @unittest.skipUnless(PARQUET, "built without Arrow")
    def test_unusable_rows_and_files(self):
        path = self.root / "nulls.parquet"
        image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        table = pa.table({"image": pa.array([None, {"bytes": None, "path": "x"}, {"bytes": b"i"}, {"bytes": b"i"}, {"bytes": b"i"}], image),
                          "caption": pa.array([["a"], ["a"], None, [], ["a"]])})
        pq.write_table(table, path)
        self.assertEqual(["its image is null", "its image is null", "no caption", "no caption", ""],
                         [sample["problem"] for sample in self.read(path, format="parquet")])

        def error(file, **request):
            return self.reply_to({"files": [str(file)], "format": "parquet", **request})["error"]

        self.assertIn('no column "images" (there are: "image", "caption")', error(path, interleaved=True))
        self.assertIn('no column "picture"', error(path, image_key="picture"))
        self.assertIn('no column "title"', error(path, caption_key="title"))
        other = self.root / "other.parquet"
        pq.write_table(pa.table({"text": ["x"]}), other)
        self.assertIn('no column "image" (there are: text)', error(other))
        damaged = self.root / "damaged.parquet"
        large = pa.table({"image": [random.Random(i).randbytes(3000) for i in range(50)], "text": ["x"] * 50})
        pq.write_table(large, damaged, compression="none", write_page_checksum=True)
        content = bytearray(damaged.read_bytes())
        content[60_000] ^= 1
        damaged.write_bytes(content)
        self.assertIn(f"{damaged}: row ", error(damaged))
        damaged.write_bytes(content[:-100])
        self.assertIn("truncated", error(damaged))


def iter_tar(path):
    """Yields what Hugging Face's datasets yields of an archive on disk."""
    with open(path, "rb") as file:
        yield from ArchiveIterable._iter_from_fileobj(file)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
