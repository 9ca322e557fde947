/** Two tokenizations of one text: the spans that end at the same places, and a teacher's log-probs shared over them. */

/** Tokens [first, end) of the student and of the teacher that write the same bytes. */
export interface AlignedSpan {
  readonly student: readonly [first: number, end: number];
  readonly teacher: readonly [first: number, end: number];
}

/**
 * The shortest spans that both end at the same byte, in order. They partition both sides. A token without bytes belongs to
 * the span before it, at the start to the first.
 * @param student bytes of each token
 * @param teacher bytes of each token, as many in sum
 */
export function alignSpans(student: ArrayLike<number>, teacher: ArrayLike<number>): AlignedSpan[] {
  const spans: AlignedSpan[] = [];
  let [s, t, studentBytes, teacherBytes] = [0, 0, 0, 0];
  let [firstS, firstT] = [0, 0];
  while (s < student.length || t < teacher.length) {
    if (t === teacher.length || (s < student.length && studentBytes <= teacherBytes)) studentBytes += student[s++]!;
    else teacherBytes += teacher[t++]!;
    while (student[s] === 0) s++;
    while (teacher[t] === 0) t++;
    if (studentBytes !== teacherBytes || studentBytes === 0 || s === firstS || t === firstT) continue;
    spans.push({ student: [firstS, s], teacher: [firstT, t] });
    [firstS, firstT] = [s, t];
  }
  return spans;
}

/**
 * A teacher's log-prob at each of the student's tokens, [T]: their own plus an equal share of their span's difference, so that
 * over a span log p_student - log p_teacher adds up to that of its text. Outside of spans it is the student's own.
 * @param logprobs of the student's tokens, [T], and of the teacher's
 */
export function shareOverSpans(
  spans: readonly AlignedSpan[],
  logprobs: { readonly student: ArrayLike<number>; readonly teacher: ArrayLike<number> },
): Float32Array {
  const shared = Float32Array.from(logprobs.student);
  for (const { student, teacher } of spans) {
    const [first, end] = student;
    const share = (sumOf(logprobs.teacher, teacher) - sumOf(logprobs.student, student)) / (end - first);
    for (let t = first; t < end; t++) shared[t] = logprobs.student[t]! + share;
  }
  return shared;
}

function sumOf(values: ArrayLike<number>, [first, end]: readonly [number, number]): number {
  let sum = 0;
  for (let t = first; t < end; t++) sum += values[t]!;
  return sum;
}
