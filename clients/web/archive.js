// Transcripts kept in this browser (IndexedDB), so that neither a reload nor a server that is
// started again loses one. What is older than a week is forgotten.

const KEPT_MS = 7 * 24 * 3600 * 1000;

const done = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

export class Archive {
  #database;

  constructor(database) {
    this.#database = database;
  }

  /** Open it; rejects where the browser keeps nothing, as in some private windows. */
  static async open() {
    const request = indexedDB.open("streamd", 1);
    request.onupgradeneeded = () => {
      request.result.createObjectStore("transcripts", { keyPath: "name" });
      request.result.createObjectStore("items", { keyPath: ["name", "n"] });
    };
    const archive = new Archive(await done(request));
    for (const { name, changed } of await archive.list()) {
      if (Date.now() - changed > KEPT_MS) await archive.remove(name);
    }
    return archive;
  }

  /** All transcripts: [{name, isOwn, state, nItems, changed}]; `isOwn`: said into this browser. */
  list() {
    return done(this.#store("transcripts", "readonly").getAll());
  }

  /** {isOwn, state, items} of a transcript, or null. */
  async load(name) {
    const kept = await done(this.#store("transcripts", "readonly").get(name));
    if (kept === undefined) return null;
    const rows = await done(this.#store("items", "readonly").getAll(range(name)));
    return { ...kept, items: rows.map(({ item }) => item) };
  }

  /** Keep the state of a transcript, and of its items those from number `from` on. */
  save(name, { isOwn, state, items }, from) {
    const transaction = this.#database.transaction(["transcripts", "items"], "readwrite");
    transaction.objectStore("transcripts").put({ name, isOwn, state, nItems: items.length, changed: Date.now() });
    const store = transaction.objectStore("items");
    if (items.length <= from) store.delete(range(name, items.length));
    items.slice(from).forEach((item, i) => store.put({ name, n: from + i, item }));
    return new Promise((resolve, reject) => {
      transaction.oncomplete = resolve;
      transaction.onerror = transaction.onabort = () => reject(transaction.error);
    });
  }

  async remove(name) {
    await done(this.#store("items", "readwrite").delete(range(name)));
    await done(this.#store("transcripts", "readwrite").delete(name));
  }

  #store(name, mode) {
    return this.#database.transaction(name, mode).objectStore(name);
  }
}

const range = (name, from = 0) => IDBKeyRange.bound([name, from], [name, Infinity]);
