/** The widest head that the arrays of the attention kernels hold. */
export const MAX_HEAD_WIDTH = 256;
