// Parameters, buffers and results of C = alpha A B (+ addend).
//#include "matmul/parts/params.wgsl"
//#include "matmul/parts/results.wgsl"
