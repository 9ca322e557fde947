// Exponentials of the attention kernels.

// exp(x) = exp2(x * LOG2_E).
const LOG2_E = 1.4426950408889634;
// Below every score.
const LOWEST = -1e30;
