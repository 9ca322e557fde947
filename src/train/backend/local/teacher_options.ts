/** How a teacher is held: a pass keeps a device busy, and is small next to the student's training pass. Plans count it so. */
export const TEACHER_OPTIONS = { frozen: true, maxTokensPerPass: 2048 } as const;
