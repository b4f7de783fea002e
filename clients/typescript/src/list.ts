/** One page of a list. */
interface PageOf<Item> {
  items: Item[];
  nextCursor: string | null;
}

/**
 * A list that is about to be read: awaited it is the first page, iterated it is every item of every page. Nothing is asked for before.
 */
export class ListCall<Page extends PageOf<Item>, Item> implements PromiseLike<Page>, AsyncIterable<Item> {
  readonly #read: (cursor?: string) => Promise<Page>;

  constructor(read: (cursor?: string) => Promise<Page>) {
    this.#read = read;
  }

  then<A = Page, B = never>(onPage?: ((page: Page) => A | PromiseLike<A>) | null, onError?: ((e: unknown) => B | PromiseLike<B>) | null): Promise<A | B> {
    return this.#read().then(onPage, onError);
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Item, void, undefined> {
    for await (const page of this.pages()) yield* page.items;
  }

  /** Every page. */
  async *pages(): AsyncGenerator<Page, void, undefined> {
    let page = await this.#read();
    yield page;
    while (page.nextCursor !== null) {
      page = await this.#read(page.nextCursor);
      yield page;
    }
  }
}
