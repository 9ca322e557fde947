// Tokens of a page of the cache.
const PAGE = 16u;
