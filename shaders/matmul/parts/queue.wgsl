// The sums of up to 32 rows of C, by a kernel that defines alias Sums, a lane's columns of a row, and ROWS.
// They are variables, because CPU drivers keep arrays in memory. They enter and leave one row at a time, as a queue: such a
// driver makes every access to memory a loop over lanes, and takes many seconds to compile a kernel with dozens of them.

const LANES = 8u;
const C_WIDTH = 4u;
// Rows that move one by one; the rest move by as many.
const QUEUE = 8u;

var<private> sum0: Sums;
var<private> sum1: Sums;
var<private> sum2: Sums;
var<private> sum3: Sums;
var<private> sum4: Sums;
var<private> sum5: Sums;
var<private> sum6: Sums;
var<private> sum7: Sums;
var<private> sum8: Sums;
var<private> sum9: Sums;
var<private> sum10: Sums;
var<private> sum11: Sums;
var<private> sum12: Sums;
var<private> sum13: Sums;
var<private> sum14: Sums;
var<private> sum15: Sums;
var<private> sum16: Sums;
var<private> sum17: Sums;
var<private> sum18: Sums;
var<private> sum19: Sums;
var<private> sum20: Sums;
var<private> sum21: Sums;
var<private> sum22: Sums;
var<private> sum23: Sums;
var<private> sum24: Sums;
var<private> sum25: Sums;
var<private> sum26: Sums;
var<private> sum27: Sums;
var<private> sum28: Sums;
var<private> sum29: Sums;
var<private> sum30: Sums;
var<private> sum31: Sums;

// Takes the first row's sums off the queue and puts `last` at its end.
fn push(last: Sums) {
  sum0 = sum1;
  sum1 = sum2;
  sum2 = sum3;
  sum3 = sum4;
  sum4 = sum5;
  sum5 = sum6;
  sum6 = sum7;
  sum7 = last;
}

// Brings the next eight rows to the queue.
fn next_rows() {
  if (ROWS > QUEUE) {
    sum0 = sum8;
    sum1 = sum9;
    sum2 = sum10;
    sum3 = sum11;
    sum4 = sum12;
    sum5 = sum13;
    sum6 = sum14;
    sum7 = sum15;
    sum8 = sum16;
    sum9 = sum17;
    sum10 = sum18;
    sum11 = sum19;
    sum12 = sum20;
    sum13 = sum21;
    sum14 = sum22;
    sum15 = sum23;
    sum16 = sum24;
    sum17 = sum25;
    sum18 = sum26;
    sum19 = sum27;
    sum20 = sum28;
    sum21 = sum29;
    sum22 = sum30;
    sum23 = sum31;
  }
}

// Puts the queue back and leaves its rows to those before.
fn rows_before() {
  if (ROWS > QUEUE) {
    sum31 = sum23;
    sum30 = sum22;
    sum29 = sum21;
    sum28 = sum20;
    sum27 = sum19;
    sum26 = sum18;
    sum25 = sum17;
    sum24 = sum16;
    sum23 = sum15;
    sum22 = sum14;
    sum21 = sum13;
    sum20 = sum12;
    sum19 = sum11;
    sum18 = sum10;
    sum17 = sum9;
    sum16 = sum8;
    sum15 = sum7;
    sum14 = sum6;
    sum13 = sum5;
    sum12 = sum4;
    sum11 = sum3;
    sum10 = sum2;
    sum9 = sum1;
    sum8 = sum0;
  }
}
