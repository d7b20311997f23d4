! A x = b with ScaLAPACK: an n x n system by LU with partial pivoting, block-cyclic over a grid of processes.
!
! gfortran pdgesv.f90 -l:libscalapack-mpich.so.2.2 -o pdgesv && mpiexec -n 4 ./pdgesv
program pdgesv_example
  implicit none
  integer, parameter :: n = 500, nb = 64
  integer :: iam, nprocs, ictxt, nprow, npcol, myrow, mycol

  call blacs_pinfo(iam, nprocs)
  nprow = int(sqrt(real(nprocs)))
  npcol = nprocs / nprow
  call blacs_get(-1, 0, ictxt)
  call blacs_gridinit(ictxt, 'R', nprow, npcol)
  call blacs_gridinfo(ictxt, nprow, npcol, myrow, mycol)
  if (myrow >= 0) call solve()
  call blacs_exit(0)

contains

  subroutine solve()
    integer :: desca(9), descb(9), info, i, j, gi, gj, ma, na, mb
    integer, allocatable :: ipiv(:)
    double precision, allocatable :: a(:, :), b(:, :)
    double precision :: x
    integer, external :: numroc, indxl2g

    ! 1. Describe A and b, and size their local arrays.
    ma = numroc(n, nb, myrow, 0, nprow)
    na = numroc(n, nb, mycol, 0, npcol)
    mb = numroc(1, nb, mycol, 0, npcol)
    call descinit(desca, n, n, nb, nb, 0, 0, ictxt, max(1, ma), info)
    call descinit(descb, n, 1, nb, nb, 0, 0, ictxt, max(1, ma), info)
    allocate(a(ma, na), b(ma, mb), ipiv(ma + nb))

    ! 2. Fill them: A(i, j) = mod(i + 2 j, 7) - 3, and 20 more on the diagonal; b(i) = mod(i, 5).
    do i = 1, ma
      gi = indxl2g(i, nb, myrow, 0, nprow)
      do j = 1, na
        gj = indxl2g(j, nb, mycol, 0, npcol)
        a(i, j) = mod(gi + 2 * gj, 7) - 3
        if (gi == gj) a(i, j) = a(i, j) + 20
      end do
      if (mb > 0) b(i, 1) = mod(gi, 5)
    end do

    ! 3. Solve: A becomes L and U, b becomes x.
    call pdgesv(n, 1, a, 1, 1, desca, ipiv, b, 1, 1, descb, info)
    if (info > 0) print '(a, i0, a)', 'A is singular: U(', info, ') is 0'

    ! 4. Look at some elements.
    do i = 1, n, 166
      call pdelget('A', ' ', x, b, i, 1, descb)
      if (myrow == 0 .and. mycol == 0) print '(a, i4, a, f11.8)', 'x(', i, ') =', x
    end do
    call blacs_gridexit(ictxt)
  end subroutine solve

end program pdgesv_example
