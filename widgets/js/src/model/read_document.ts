/** A deck's document out of gzipped JSON. */

import { checkDocument, DocumentError } from "./check_document.ts";
import type { DeckDocument } from "./document.ts";

/** Reads and checks a document. Throws DocumentError. */
export async function readDocument(bytes: BufferSource): Promise<DeckDocument> {
  let content: unknown;
  try {
    content = await readJson(bytes);
  } catch {
    throw new DocumentError("This deck's data is damaged: it is not gzipped JSON. Save the page again.");
  }
  return checkDocument(content);
}

/** They turn the direction of what follows, so that a name reads as another: no reader needs them to. */
const TURNS = /[\u202a-\u202e\u2066-\u2069]/g;

/** Unpacks gzipped JSON. */
export async function readJson(bytes: BufferSource): Promise<unknown> {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse((await new Response(stream).text()).replace(TURNS, ""));
}
