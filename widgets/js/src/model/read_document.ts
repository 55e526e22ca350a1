/** Reading a deck's document from gzipped JSON. */

import { checkDocument, DocumentError } from "./check_document.ts";
import type { DeckDocument } from "./document.ts";

/** Read and check a document. Throw DocumentError if it is damaged. */
export async function readDocument(bytes: BufferSource): Promise<DeckDocument> {
  let content: unknown;
  try {
    content = await readJson(bytes);
  } catch {
    throw new DocumentError("This deck's data is damaged: it is not gzipped JSON. Save the page again.");
  }
  return checkDocument(content);
}

/**
 * Characters that change the direction of the text after them. They could disguise a name, and no reader needs them.
 */
const TURNS = /[\u202a-\u202e\u2066-\u2069]/g;

/** Decompress and parse gzipped JSON. */
export async function readJson(bytes: BufferSource): Promise<unknown> {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse((await new Response(stream).text()).replace(TURNS, ""));
}
