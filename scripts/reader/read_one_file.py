#!/usr/bin/env python3
"""Restores one file of a physical backup, with nothing but docs/reference/repository.md to go by.

    read_one_file.py REPOSITORY SOURCE RUN PATH OUTPUT        the password is read from standard input

It shares no code with Holdfast: whoever keeps this page and a repository can read their backups without the program.
It needs the Python packages in requirements.txt, and is slow. Section numbers are those of docs/reference/repository.md.
"""

import json
import struct
import sys
from pathlib import Path

import zstandard
from cryptography.hazmat.primitives import hashes, hmac
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id

PHYSICAL = 1


class Damaged(Exception):
    """An object is not what the specification says."""


def require(holds, what):
    if not holds:
        raise Damaged(what)


# --- BLAKE3, after its specification ---------------------------------------------------------------------------------

IV = (0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19)
PERMUTATION = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
CHUNK_START, CHUNK_END, PARENT, ROOT, KEYED, CONTEXT, MATERIAL = 1, 2, 4, 8, 16, 32, 64
MASK = 0xFFFFFFFF


def _mix(s, a, b, c, d, x, y):
    s[a] = (s[a] + s[b] + x) & MASK
    t = s[d] ^ s[a]
    s[d] = (t >> 16 | t << 16) & MASK
    s[c] = (s[c] + s[d]) & MASK
    t = s[b] ^ s[c]
    s[b] = (t >> 12 | t << 20) & MASK
    s[a] = (s[a] + s[b] + y) & MASK
    t = s[d] ^ s[a]
    s[d] = (t >> 8 | t << 24) & MASK
    s[c] = (s[c] + s[d]) & MASK
    t = s[b] ^ s[c]
    s[b] = (t >> 7 | t << 25) & MASK


def _compress(chaining, block, counter, length, flags):
    m = list(struct.unpack("<16I", block.ljust(64, b"\0")))
    s = list(chaining) + list(IV[:4]) + [counter & MASK, counter >> 32, length, flags]
    for turn in range(7):
        _mix(s, 0, 4, 8, 12, m[0], m[1])
        _mix(s, 1, 5, 9, 13, m[2], m[3])
        _mix(s, 2, 6, 10, 14, m[4], m[5])
        _mix(s, 3, 7, 11, 15, m[6], m[7])
        _mix(s, 0, 5, 10, 15, m[8], m[9])
        _mix(s, 1, 6, 11, 12, m[10], m[11])
        _mix(s, 2, 7, 8, 13, m[12], m[13])
        _mix(s, 3, 4, 9, 14, m[14], m[15])
        if turn < 6:
            m = [m[at] for at in PERMUTATION]
    return [s[i] ^ s[i + 8] for i in range(8)]


def _tree(key, data, first_chunk, flags, is_root):
    if len(data) <= 1024:
        blocks = [data[at:at + 64] for at in range(0, len(data), 64)] or [b""]
        chaining = key
        for number, block in enumerate(blocks):
            own = flags | (CHUNK_START if number == 0 else 0)
            if number + 1 == len(blocks):
                own |= CHUNK_END | (ROOT if is_root else 0)
            chaining = _compress(chaining, block, first_chunk, len(block), own)
        return chaining
    chunks = (len(data) + 1023) // 1024
    left = 1 << ((chunks - 1).bit_length() - 1)
    halves = _tree(key, data[:left * 1024], first_chunk, flags, False)
    halves = halves + _tree(key, data[left * 1024:], first_chunk + left, flags, False)
    return _compress(key, struct.pack("<16I", *halves), 0, 64, flags | PARENT | (ROOT if is_root else 0))


def blake3(data, key=None, flags=0):
    words = IV if key is None else struct.unpack("<8I", key)
    flags |= KEYED if key is not None and not flags else 0
    return struct.pack("<8I", *_tree(words, data, 0, flags, True))


def blake3_derive(context, material):
    return blake3(material, blake3(context, flags=CONTEXT), MATERIAL)


# --- HPKE, RFC 9180 --------------------------------------------------------------------------------------------------

def _hmac(key, data):
    mac = hmac.HMAC(key or bytes(32), hashes.SHA256())
    mac.update(data)
    return mac.finalize()


def _extract(suite, salt, label, data):
    return _hmac(salt, b"HPKE-v1" + suite + label + data)


def _expand(suite, key, label, info, length):
    info = struct.pack(">H", length) + b"HPKE-v1" + suite + label + info
    out, block, number = b"", b"", 1
    while len(out) < length:
        block = _hmac(key, block + info + bytes([number]))
        out, number = out + block, number + 1
    return out[:length]


def hpke_open(private, encapsulated, sealed, info):
    private = X25519PrivateKey.from_private_bytes(private)
    public = private.public_key().public_bytes_raw()
    shared = private.exchange(X25519PublicKey.from_public_bytes(encapsulated))
    kem, suite = b"KEM\x00\x20", b"HPKE\x00\x20\x00\x01\x00\x02"
    prk = _extract(kem, b"", b"eae_prk", shared)
    shared = _expand(kem, prk, b"shared_secret", encapsulated + public, 32)
    context = b"\0" + _extract(suite, b"", b"psk_id_hash", b"") + _extract(suite, b"", b"info_hash", info)
    secret = _extract(suite, shared, b"secret", b"")
    key = _expand(suite, secret, b"key", context, 32)
    return AESGCM(key).decrypt(_expand(suite, secret, b"base_nonce", context, 12), sealed, b"")


# --- Bytes and numbers (section 1) -----------------------------------------------------------------------------------

class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def bytes(self, count):
        require(self.at + count <= len(self.data), "it ends early")
        self.at += count
        return self.data[self.at - count:self.at]

    def number(self, width):
        return int.from_bytes(self.bytes(width), "little")

    def varint(self):
        value = shift = 0
        while True:
            byte = self.number(1)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            require(shift < 70, "a number is too long")

    def chunk(self):
        return (self.varint(), self.varint(), self.varint())


def lz4(data, length):
    out, at = bytearray(), 0

    def more(count):
        nonlocal at
        if count == 15:
            while True:
                count += data[at]
                at += 1
                if data[at - 1] != 255:
                    break
        return count

    while at < len(data):
        token = data[at]
        at += 1
        literals = more(token >> 4)
        out += data[at:at + literals]
        at += literals
        if at >= len(data):
            break
        offset = data[at] | data[at + 1] << 8
        at += 2
        count = more(token & 15) + 4
        require(0 < offset <= len(out), "lz4: an offset leads nowhere")
        for _ in range(count):
            out.append(out[-offset])
    require(len(out) == length, "lz4: another length")
    return bytes(out)


def decompress(codec, data, length):
    if codec == 0:
        plain = data
    elif codec == 1:
        plain = zstandard.ZstdDecompressor().decompress(data, max_output_size=max(length, 1))
    elif codec == 2:
        plain = lz4(data, length)
    elif codec == 3:
        import gzip
        plain = gzip.decompress(data)
    else:
        raise Damaged(f"codec {codec} is for rows")
    require(len(plain) == length, "it has another length than recorded")
    return plain


# --- The repository --------------------------------------------------------------------------------------------------

class Repository:
    def __init__(self, root, password):
        self.root = Path(root)
        info = json.loads((self.root / "holdfast.json").read_text())
        require(info["format"] == 2, "this reads format 2")
        self.id = bytes.fromhex(info["repository_id"])
        self.encrypted = info["suite"] != "none"
        payload = self.open_key(password)
        require(payload["repository"] == info, "holdfast.json is not what the key says")
        # By rotation: none, then those before the key was made.
        pairs = [payload, *payload.get("rotated", [])]
        self.read_keys = [bytes.fromhex(pair["read_private"]) for pair in pairs]
        self.refs_keys = [bytes.fromhex(pair["refs_private"]) for pair in pairs]
        self.hash_key = bytes.fromhex(payload["hash_key"])
        self.signers = {bytes.fromhex(it["public"]): it["role"] for it in payload["signers"]}
        self.directories = {}

    def open_key(self, password):
        """Section 4."""
        roles = {"operator": 1, "writer": 2, "keeper": 3}
        for path in sorted((self.root / "keys").iterdir()):
            key = json.loads(path.read_text())
            slot, sealed = key["slot"], bytes.fromhex(key["sealed"])
            if slot["kind"] == "none":
                return json.loads(sealed)
            if slot["kind"] != "password":
                continue
            salt = bytes.fromhex(slot["salt"])
            derived = Argon2id(salt=salt, length=32, iterations=slot["t"], lanes=slot["p"],
                               memory_cost=slot["m_kib"]).derive(password)
            context = b"holdfast key 1\0" + self.id + bytes.fromhex(key["key_id"]) + bytes([roles[key["role"]]])
            context += struct.pack("<III", slot["m_kib"], slot["t"], slot["p"]) + salt
            try:
                return json.loads(AESGCM(derived).decrypt(bytes.fromhex(slot["nonce"]), sealed, context))
            except Exception:  # another key's password
                continue
        raise Damaged("no key opens with this password")

    def hash16(self, data):
        return blake3(data, self.hash_key)[:16]


class Log:
    """The physical backups of one source."""

    def __init__(self, repository, source):
        self.repository, self.source = repository, source
        self.folder = repository.root / "sources" / source / "physical"
        self.outcomes = self.read_outcomes()
        self.moves = {}
        for run, public in self.outcomes.items():
            if public["type"] == "prune":
                self.read_moves(run, bytes.fromhex(public["refs"]))

    def place(self, run, part, object_kind):
        source = self.source.encode()
        return (self.repository.id + bytes([len(source)]) + source + bytes([PHYSICAL, object_kind])
                + struct.pack("<QI", run, part))

    def object_key(self, header, run, part, object_kind):
        """Section 5: the header, and the key that it gives."""
        repository = self.repository
        magic, kind, suite, secret_kind, rotation = struct.unpack("<4sBBBB", header[:8])
        require(magic == b"HFD1" and kind == object_kind, "it is no such object")
        require(suite == (1 if repository.encrypted else 0), "it has another suite than the repository")
        require(header[8:24] == repository.id, "it is of another repository")
        require(struct.unpack("<QI", header[24:36]) == (run, part), "it is of another place")
        if not repository.encrypted:
            secret = bytes(32)
        else:
            keys = repository.read_keys if secret_kind == 1 else repository.refs_keys
            require(rotation < len(keys), "it is sealed with newer keys")
            info = b"holdfast run secret 1\0" + repository.id
            secret = hpke_open(keys[rotation], header[36:68], header[68:116], info)
        return blake3_derive(b"holdfast 2026-11 object key 1", secret + self.place(run, part, object_kind))

    def unseal(self, key, sealed, object_kind, chunk_kind, codec, last, ordinal, plain_len):
        context = b"HFD1" + struct.pack("<BBBBQI", object_kind, chunk_kind, codec, last, ordinal, plain_len)
        if self.repository.encrypted:
            return AESGCM(key).decrypt(bytes(4) + struct.pack(">Q", ordinal), sealed, context)
        body, tag = sealed[:-16], sealed[-16:]
        require(blake3(context + body, key)[:16] == tag, "it is damaged")
        return body

    def open_object(self, data, run, part, object_kind):
        key = self.object_key(data[:116], run, part, object_kind)
        reader, plain, last = Reader(data), [], 0
        reader.bytes(116)
        while not last:
            plain_len, sealed_len = reader.number(4), reader.number(4)
            codec, last = reader.number(1), reader.number(1)
            sealed = reader.bytes(sealed_len)
            opened = self.unseal(key, sealed, object_kind, 0, codec, last, len(plain), plain_len)
            plain.append(decompress(codec, opened, plain_len))
        require(reader.at == len(data), "something follows the last frame")
        return b"".join(plain)

    def read_outcomes(self):
        """Sections 11 and 13."""
        outcomes, previous = {}, bytes(32)
        for path in sorted((self.folder / "outcomes").iterdir()):
            run, data = int(path.name), path.read_bytes()
            reader = Reader(data)
            require(reader.bytes(4) == b"HFO1", f"{path} is no outcome")
            public = reader.bytes(reader.number(4))
            head = reader.bytes(reader.number(4))
            before = data[:reader.at]
            signer, signature = reader.bytes(32), reader.bytes(64)
            require(reader.at == len(data), f"{path} goes on too long")
            require(signer in self.repository.signers, f"{path} is signed by nobody known")
            source = self.source.encode()
            message = (b"holdfast outcome 1\0" + self.repository.id + bytes([len(source)]) + source
                       + bytes([PHYSICAL]) + struct.pack("<Q", run) + blake3(before))
            Ed25519PublicKey.from_public_bytes(signer).verify(signature, message)
            public = json.loads(self.open_object(public, run, 0, 4))
            require(public["run"] == run, f"{path} is of another run")
            require(bytes.fromhex(public["previous"]) == previous, f"{path} does not continue the chain")
            require(public["type"] != "repair", "a log that was repaired takes more than this reader knows")
            previous = blake3(data)
            outcomes[run] = public | {"head": head}
        return outcomes

    def read_moves(self, run, recorded):
        """Section 10."""
        data = (self.folder / "refs" / f"{run:010}").read_bytes()
        require(blake3(data) == recorded, f"the refs of run {run} are not what its outcome recorded")
        reader = Reader(self.open_object(data, run, 0, 3))
        require(reader.number(1) == 2, f"the refs of run {run} are not those of a prune")
        for _ in range(reader.varint()):
            reader.varint(), reader.varint()
        for _ in range(reader.varint()):
            self.moves[reader.chunk()] = reader.chunk()

    def standing(self):
        dropped = {run for public in self.outcomes.values() for run in public.get("dropped", [])}
        return [run for run, it in self.outcomes.items() if it["type"] == "backup" and run not in dropped]

    def directory(self, run, part):
        """Section 6: the pack itself says what is in it; the index is not needed."""
        known = self.repository.directories
        if (run, part) not in known:
            data = (self.folder / "packs" / f"{run:010}-{part:06}").read_bytes()
            offset, sealed_len, plain_len, magic = struct.unpack("<QII4s", data[-20:])
            require(magic == b"HFPT", f"pack {run}-{part} has no end")
            key = self.object_key(data[:116], run, part, 1)
            sealed = data[offset:offset + sealed_len]
            reader = Reader(self.unseal(key, sealed, 1, 15, 0, 0, 1 << 32, plain_len))
            rows, at = [], 116
            for _ in range(reader.varint()):
                kind, codec, size = reader.number(1), reader.number(1), reader.number(1)
                plain_len, sealed_len, units = reader.varint(), reader.varint(), reader.varint()
                if codec == 4:
                    reader.chunk()
                rows.append((kind, codec, size, plain_len, at, sealed_len))
                at += sealed_len
            known[run, part] = (data, key, rows)
        return known[run, part]

    def chunk(self, chunk, kind):
        while chunk in self.moves:
            chunk = self.moves[chunk]
        run, part, ordinal = chunk
        data, key, rows = self.directory(run, part)
        found, codec, _, plain_len, at, sealed_len = rows[ordinal]
        require(found == kind, f"chunk {chunk} holds something else")
        opened = self.unseal(key, data[at:at + sealed_len], 1, kind, codec, 0, ordinal, plain_len)
        return decompress(codec, opened, plain_len)

    def checked(self, chunk, kind, wanted):
        plain = self.chunk(chunk, kind)
        require(self.repository.hash16(plain) == wanted, f"chunk {chunk} is not what was recorded")
        return plain

    # Sections 8 and 9.

    def columns(self, reader, count):
        packs = [(reader.varint(), reader.varint()) for _ in range(reader.varint())]
        states = [reader.varint() for _ in range(count)]
        stored = [at for at, state in enumerate(states) if state >= 2]
        ordinals = [reader.varint() for _ in stored]
        slots = [reader.varint() for _ in stored]
        entries = [None] * count
        for at, ordinal, slot in zip(stored, ordinals, slots):
            entries[at] = ((*packs[states[at] - 2], ordinal), slot, reader.bytes(16))
        return entries

    def leaf(self, chunk, slot, wanted):
        reader = Reader(self.checked(chunk, 2, wanted))
        lengths = [reader.varint() for _ in range(reader.varint())]
        leaves = [reader.bytes(length) for length in lengths]
        reader = Reader(leaves[slot])
        if reader.number(1) == 1:
            return self.columns(reader, reader.varint())
        under = (reader.chunk(), reader.varint(), reader.bytes(16))
        count = reader.varint()
        patches, at = [], -1
        for _ in range(reader.varint()):
            at += reader.varint() + 1
            patches.append(at)
        entries = (self.leaf(*under) + [None] * count)[:count]
        for at, entry in zip(patches, self.columns(reader, len(patches))):
            entries[at] = entry
        return entries

    def find(self, run, path):
        head = json.loads(self.open_object(self.outcomes[run]["head"], run, 0, 5))
        for root in head["roots"]:
            chunk = (root["run"], root["part"], root["ordinal"])
            roots = Reader(self.checked(chunk, 4, bytes.fromhex(root["hash"])))
            for _ in range(roots.varint()):
                roots.bytes(roots.varint())
                count, wanted = roots.varint(), roots.bytes(16)
                items = Reader(self.checked(roots.chunk(), 3, wanted))
                for _ in range(count):
                    item = Reader(items.bytes(items.varint()))
                    if item.bytes(item.varint()) == path:
                        return item
        raise Damaged(f"backup {run} has no {path.decode()}")

    def read_file(self, run, path):
        item = self.find(run, path)
        require(item.number(1) == 1, "it is no file")
        item.number(1), item.number(2)
        size, page_bytes = item.varint(), 1 << item.number(1)
        item.varint(), item.number(4)
        item.bytes(item.varint())
        if item.number(1) == 0:
            entries = self.columns(item, item.varint())
        else:
            count = item.varint()
            chunks = [(item.chunk(), item.bytes(16)) for _ in range(item.varint())]
            entries = []
            for _ in range(count):
                chunk, wanted = chunks[item.varint()]
                entries += self.leaf(chunk, item.varint(), wanted)
        pages, plain = [], {}
        for entry in entries:
            if entry is None:
                pages.append(bytes(page_bytes))
                continue
            chunk, slot, wanted = entry
            if chunk not in plain:
                plain[chunk] = self.chunk(chunk, 1)
            page = plain[chunk][slot * page_bytes:(slot + 1) * page_bytes]
            require(self.repository.hash16(page) == wanted, f"page {len(pages)} is not what was recorded")
            pages.append(page)
        data = b"".join(pages)
        require(len(data) - page_bytes < size <= len(data) or size == 0, "it has another size than recorded")
        return data[:size]


def main():
    root, source, run, path, output = sys.argv[1:]
    password = sys.stdin.buffer.read().rstrip(b"\r\n")
    log = Log(Repository(root, password), source)
    require(int(run) in log.standing(), f"backup {run} does not stand")
    Path(output).write_bytes(log.read_file(int(run), path.encode()))


if __name__ == "__main__":
    main()
