/** llama.cpp's kinds of tokens. */
export const TOKEN_TYPE = { normal: 1, unknown: 2, control: 3, user: 4, unused: 5, byte: 6 } as const;
